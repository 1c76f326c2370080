package call

// Outside says whether one of the ids is no token of a vocabulary of this size;
// 0: its size is not known, and only negative ids are outside.
func Outside(ids []int32, vocabulary int) bool {
	least, most := int32(0), int32(0)
	for _, id := range ids { // to the end: without branches that is the quickest
		least, most = min(least, id), max(most, id)
	}
	return least < 0 || vocabulary > 0 && len(ids) > 0 && int(most) >= vocabulary
}

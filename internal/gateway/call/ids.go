package call

// Outside says whether one of the ids is no token of a vocabulary of this size;
// 0: its size is not known, and only negative ids are outside.
func Outside(ids []int32, vocabulary int) bool {
	for _, id := range ids {
		if id < 0 || vocabulary > 0 && int(id) >= vocabulary {
			return true
		}
	}
	return false
}

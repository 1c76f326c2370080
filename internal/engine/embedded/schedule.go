package embedded

import (
	"cmp"
	"slices"
)

// chunkRows is about how many rows go through the blocks together: enough to make
// the products efficient, few enough for the activations of a block to stay in a
// core's cache.
const chunkRows = 256

// maxLanes is the number of gradients that are summed apart. The sum's order, and
// so its bits, depend on it and on the data, not on the number of threads.
const maxLanes = 8

// laneBytes bounds the memory of the lanes.
const laneBytes = 1 << 30

func lanesFor(size int) int { return min(maxLanes, max(2, laneBytes/(4*size))) }

// makeChunks packs sequences of the given lengths (0: left out) into chunks of
// up to chunkRows rows, long ones first, so that a chunk's sequences are alike.
func makeChunks(index []int, length []int) [][]int {
	order := slices.Clone(index)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(length[b], length[a]) })
	var chunks [][]int
	rows := 0
	for _, i := range order {
		n := length[i]
		switch {
		case n == 0:
			continue
		case len(chunks) == 0 || rows+n > chunkRows:
			chunks, rows = append(chunks, nil), 0
		}
		last := len(chunks) - 1
		chunks[last] = append(chunks[last], i)
		rows += n
	}
	return chunks
}

// makeLanes deals chunks out to at most n lanes, each to the lane with the least
// work so far (the first of equals).
func makeLanes(chunks [][]int, length []int, n int) [][][]int {
	n = min(n, len(chunks))
	lanes, work := make([][][]int, n), make([]int, n)
	for _, c := range chunks {
		l := 0
		for i, v := range work {
			if v < work[l] {
				l = i
			}
		}
		lanes[l] = append(lanes[l], c)
		for _, i := range c {
			work[l] += length[i] * (1024 + length[i])
		}
	}
	return lanes
}

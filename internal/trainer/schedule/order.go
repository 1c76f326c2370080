package schedule

// Order is a seeded shuffle of a dataset, another one in each epoch. The row at
// a place is a function of (Seed, epoch, place), so that a run resumes from
// these numbers alone.
type Order struct {
	Rows int
	Seed uint64
}

// Epoch returns the rows in the order of an epoch: a permutation of 0..Rows-1.
func (o Order) Epoch(epoch int) []int {
	return Shuffle(o.Rows, Mix(o.Seed, uint64(epoch)))
}

// Shuffle returns a permutation of 0..n-1 that is a function of the seed
// (Fisher-Yates on SplitMix64). Its bias is below n/2^64.
func Shuffle(n int, seed uint64) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	for i := n - 1; i > 0; i-- {
		seed += golden
		j := int(finish(seed) % uint64(i+1))
		p[i], p[j] = p[j], p[i]
	}
	return p
}

// golden is 2^64 divided by the golden ratio, SplitMix64's step.
const golden = 0x9e3779b97f4a7c15

// Mix makes one seed of two numbers.
func Mix(a, b uint64) uint64 { return finish(finish(a+golden) ^ (b + golden)) }

// finish is SplitMix64's output function (Steele, Lea, Flood 2014).
func finish(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

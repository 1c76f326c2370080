//go:build !unix

package weights

import "github.com/fulgur-rl/fulgur"

func diskKind(err error) fulgur.Kind { return fulgur.KindOf(err) }

package loop

import (
	"strconv"
	"strings"
)

// Calc does one operation on two whole numbers of at most six digits, such as
// "12*3". What it can't do is answered with a text that begins with "error:".
func Calc(expression string) string {
	s := strings.ReplaceAll(expression, " ", "")
	at := -1 // the operator is the first one that can't be a sign
	for i := 1; i < len(s); i++ {
		if strings.IndexByte("+-*/", s[i]) >= 0 {
			at = i
			break
		}
	}
	if at < 0 {
		return "error: one operation"
	}
	a, okA := number(s[:at])
	b, okB := number(s[at+1:])
	if !okA || !okB {
		return "error: one operation"
	}
	switch s[at] {
	case '+':
		a += b
	case '-':
		a -= b
	case '*':
		a *= b
	default:
		if b == 0 || a%b != 0 {
			return "error: not whole"
		}
		a /= b
	}
	return strconv.Itoa(a)
}

func number(s string) (int, bool) {
	digits := strings.TrimPrefix(s, "-")
	if len(digits) == 0 || len(digits) > 6 || digits[0] < '0' || digits[0] > '9' {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

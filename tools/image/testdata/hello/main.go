// Command hello is what the images of the tests run.
package main

import (
	"fmt"
	"os"
)

var version string

func main() { fmt.Println("hello", version, len(os.Args)-1) }

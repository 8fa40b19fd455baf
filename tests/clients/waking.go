// Wakes the relays of a database, and prints the longest hint in milliseconds: see tests/it/clients/waking.rs. A
// second argument is how many hints it sends; a third has its connection closed before.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"oncebox"
)

func main() {
	client, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	hints := 1
	if len(os.Args) > 2 {
		hints, _ = strconv.Atoi(os.Args[2])
	}
	if len(os.Args) > 3 {
		client.Close()
	}
	input := bufio.NewReader(os.Stdin)
	fmt.Println("connected")
	_, _ = input.ReadString('\n')
	var longest time.Duration
	for range hints {
		begun := time.Now()
		oncebox.Wake(client, os.Args[1], "")
		longest = max(longest, time.Since(begun))
	}
	fmt.Println(float64(longest.Microseconds()) / 1000)
	_, _ = input.ReadString('\n')
}

// Reads the contracts of each folder, and checks its messages; prints a line of JSON for each
// folder: the mistakes, or the rule that each message breaks. See tests/it/clients/contracts.rs.
package main

import (
	"encoding/hex"
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"strings"

	"oncebox/contracts"
)

func main() {
	for _, folder := range os.Args[1:] {
		if err := json.NewEncoder(os.Stdout).Encode(said(folder)); err != nil {
			log.Fatal(err)
		}
	}
}

func said(folder string) []any {
	var lines []any
	read, err := contracts.Read(filepath.Join(folder, "contracts.json"))
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			lines = append(lines, line)
		}
		return lines
	}
	text, err := os.ReadFile(filepath.Join(folder, "messages"))
	if err != nil {
		log.Fatal(err)
	}
	var messages [][2]string
	if err := json.Unmarshal(text, &messages); err != nil {
		log.Fatal(err)
	}
	for _, message := range messages {
		payload, err := hex.DecodeString(message[1])
		if err != nil {
			log.Fatal(err)
		}
		if broken := read.Check(message[0], payload); broken != nil {
			lines = append(lines, broken.Error())
			continue
		}
		lines = append(lines, nil)
	}
	return lines
}

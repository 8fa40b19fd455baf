package oncebox

import (
	"bufio"
	"cmp"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The client accepts, refuses and derives keys as the shared vectors say.
func TestKeysAreJudgedAndDerivedAsTheVectorsSay(t *testing.T) {
	file, err := os.Open(cmp.Or(os.Getenv("VECTORS"), "../../schema/vectors/keys.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	repeat := regexp.MustCompile(`\{([^{}]+)\*(\d+)\}`)
	judged := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		verdict, key, _ := strings.Cut(lines.Text(), "\t")
		key = repeat.ReplaceAllStringFunc(key, func(text string) string {
			words := repeat.FindStringSubmatch(text)
			count, _ := strconv.Atoi(words[2])
			return strings.Repeat(words[1], count)
		})
		if err := CheckKey(key); (err == nil) != (verdict == "ok") {
			t.Errorf("%s: %v", lines.Text(), err)
		}
		judged++
	}
	if judged <= 50 {
		t.Errorf("only %d vectors", judged)
	}
	root, _ := RootKey("a:b%")
	step, _ := StepKey(root, "pay")
	part, _ := PartKey(step, 3)
	if undo, err := UndoKey(part); undo != "a%3Ab%25:pay:#3:undo" {
		t.Error(undo, err)
	}
	for _, text := range []string{"", strings.Repeat("x", 129), "a b"} {
		if key, err := RootKey(text); err == nil {
			t.Errorf("%q became %q", text, key)
		}
	}
	for _, step := range []string{"Pay", "undo", "oncebox-edit-1", strings.Repeat("s", 65)} {
		if key, err := StepKey("a", step); err == nil {
			t.Errorf("%q became %q", step, key)
		}
	}
	if key, err := StepKey("a b", "pay"); err == nil {
		t.Error(key)
	}
	if key, err := UndoKey("a:undo"); err == nil {
		t.Error(key)
	}
}

// conformance FOLDER: runs all cases of FOLDER/index.json. One line per case, then `N passed, N failed`; exit 1 if any failed.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

type index struct {
	Golden int
	Cases  []struct{ Case, Kind, File string }
}

func main() {
	folder := ""
	if len(os.Args) == 2 {
		folder = os.Args[1]
	}
	var all index
	err := read(filepath.Join(folder, "index.json"), &all)
	if err == nil && (all.Golden != 1 || all.Cases == nil) {
		err = fmt.Errorf("golden files of another version")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "file: expected a folder of golden files; received %v; conformance models/tiny\n", err)
		os.Exit(2)
	}
	passed, failed := 0, 0
	for _, one := range all.Cases {
		if err := conform(folder, one.Kind, one.File); err != nil {
			fmt.Printf("FAILED %s: %v\n", one.Case, err)
			failed++
		} else {
			fmt.Printf("ok %s\n", one.Case)
			passed++
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 || passed == 0 {
		os.Exit(1)
	}
}

// conform runs a case. A failed check panics with wrong.
func conform(folder, kind, file string) (err error) {
	defer func() {
		if found := recover(); found != nil {
			reason, expected := found.(wrong)
			if !expected {
				panic(found)
			}
			err = reason.error
		}
	}()
	run, known := kinds[kind]
	if !known {
		return fmt.Errorf("a kind of case that is not known, %s", kind)
	}
	var one golden
	ok(read(filepath.Join(folder, file), &one))
	run(one, folder)
	return nil
}

func read(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

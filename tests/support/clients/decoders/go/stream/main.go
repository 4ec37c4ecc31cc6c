// Print the body of an answer as it comes, decompressed as net/http does by itself.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	request, err := http.NewRequest("GET", os.Args[1], nil)
	if err == nil {
		request.Header.Set("Accept", os.Args[2])
		err = stream(request)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func stream(request *http.Request) error {
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 || !answer.Uncompressed {
		return fmt.Errorf("status %s, uncompressed %t", answer.Status, answer.Uncompressed)
	}
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

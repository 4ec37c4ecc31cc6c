// Print each message of a WebSocket as a line, decompressed as gorilla/websocket does.
package main

import (
	"fmt"
	"os"

	"github.com/gorilla/websocket"
)

func main() {
	if err := listen(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func listen(url string) error {
	dialer := websocket.Dialer{EnableCompression: true}
	socket, _, err := dialer.Dial(url, nil)
	if err != nil {
		return err
	}
	defer socket.Close()
	for {
		_, message, err := socket.ReadMessage()
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(append(message, '\n')); err != nil {
			return err
		}
	}
}

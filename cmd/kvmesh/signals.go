package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// onSecondSignal calls hurry at the second signal to end, the first of which ends the context of main. After that a signal ends
// the process, as it does for every other command after the first. The caller calls stop when there is nothing to hurry any more.
func onSecondSignal(hurry func()) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer signal.Stop(signals)
		for range 2 {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
		}
		hurry()
	}()
	return cancel
}

package t2r

// #include <t2r.h>
import "C"

import (
	"context"
	"errors"
	"time"
)

// run makes a call, which ends when ctx does, even within a step. The error is then ctx.Err().
func (d *Decoder) run(ctx context.Context, call func() C.t2r_kind, then func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ctx.Done() == nil {
		return d.do(call, then)
	}
	err := d.do(func() C.t2r_kind {
		ended, last := make(chan struct{}), make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(last)
			d.cancel(ended)
		})
		kind := call()
		close(ended)
		if !stop() {
			<-last // or it would end the next call
		}
		return kind
	}, then)
	var found *Error
	if errors.As(err, &found) && found.Kind == KindCancelled {
		return ctx.Err()
	}
	return err
}

// cancel ends the running call, again and again: t2r_cancel does nothing before the call has begun.
func (d *Decoder) cancel(ended <-chan struct{}) {
	for {
		C.t2r_cancel(d.handle)
		select {
		case <-ended:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

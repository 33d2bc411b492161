package t2r

// #include <t2r.h>
// void t2rLog(int32_t level, char *message, void *user);
import "C"

import (
	"sync"
	"unsafe"
)

// Level is how severe a message is.
type Level int32

const (
	LevelVerbose Level = C.T2R_VERBOSE
	LevelInfo    Level = C.T2R_INFO
	LevelWarning Level = C.T2R_WARNING
	LevelError   Level = C.T2R_ERROR
	LevelFatal   Level = C.T2R_FATAL
)

var log struct {
	changes sync.Mutex // one SetLog at a time
	mutex   sync.RWMutex
	call    func(Level, string)
}

// SetLog passes messages of ONNX Runtime of this level or above to log, of graphs opened from now on: from any thread, one at
// a time. It must not call this package or panic. nil drops messages again; the log is not called after SetLog returns.
func SetLog(level Level, call func(level Level, message string)) error {
	log.changes.Lock()
	defer log.changes.Unlock()
	var called C.t2r_log
	if call != nil {
		called = C.t2r_log(C.t2rLog)
	}
	if err := try(func() C.t2r_kind { return C.t2r_set_log(called, nil, C.int32_t(level)) }); err != nil {
		return err
	}
	log.mutex.Lock()
	log.call = call
	log.mutex.Unlock()
	return nil
}

//export t2rLog
func t2rLog(level C.int32_t, message *C.char, _ unsafe.Pointer) {
	log.mutex.RLock()
	call := log.call
	log.mutex.RUnlock()
	if call != nil {
		call(Level(level), C.GoString(message))
	}
}

//! ONNX Runtime's messages.

use std::ffi::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::error::{check, text, Result};
use crate::sys;

/// How severe a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub enum Level {
    Verbose,
    Info,
    Warning,
    Error,
    Fatal,
}

const LEVELS: [Level; 5] = [Level::Verbose, Level::Info, Level::Warning, Level::Error, Level::Fatal];

type Log = Box<dyn Fn(Level, &str) + Send + Sync>;

static LOG: Mutex<Option<Box<Log>>> = Mutex::new(None); // what libt2r points to

/// Pass messages of this level or above to `log`, of graphs opened from now on: from any thread, one at a time. It must
/// not call this library. A panic in it ends with its message.
pub fn set_log(level: Level, log: impl Fn(Level, &str) + Send + Sync + 'static) -> Result<()> {
    exchange(level, Some(Box::new(Box::new(log))))
}

/// Drop messages again. The log is not called after this returns.
pub fn clear_log() -> Result<()> {
    exchange(Level::Warning, None)
}

fn exchange(level: Level, log: Option<Box<Log>>) -> Result<()> {
    let mut kept = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let user = log.as_deref().map_or(ptr::null(), ptr::from_ref).cast_mut().cast();
    let called: sys::t2r_log = if log.is_some() { Some(logged) } else { None };
    check(unsafe { sys::t2r_set_log(called, user, level as i32) })?;
    *kept = log;
    Ok(())
}

extern "C" fn logged(level: i32, message: *const c_char, user: *mut c_void) {
    let log = unsafe { &*user.cast::<Log>() };
    let level = LEVELS.get(level as usize).copied().unwrap_or(Level::Fatal);
    let _ = catch_unwind(AssertUnwindSafe(|| log(level, &text(message)))); // it must not unwind through C
}

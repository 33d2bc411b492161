//! Text to tokens and back, whole and streamed.

use std::ffi::c_char;
use std::ptr;

use crate::decoder::{list, Decoder};
use crate::error::{check, Result, Words};
use crate::sys;

/// A tokenizer. It may outlive its decoder.
#[derive(Debug)]
pub struct Tokenizer {
    handle: *mut sys::t2r_tokenizer,
}

/// Streams text token by token, never half a character. It may outlive its tokenizer.
#[derive(Debug)]
pub struct Stream {
    handle: *mut sys::t2r_stream,
}

// As for Decoder.
unsafe impl Send for Tokenizer {}
unsafe impl Send for Stream {}

impl Drop for Tokenizer {
    fn drop(&mut self) {
        unsafe { sys::t2r_close_tokenizer(self.handle) };
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        unsafe { sys::t2r_close_stream(self.handle) };
    }
}

impl Decoder {
    /// The tokenizer in the graph's metadata.
    pub fn tokenizer(&mut self) -> Result<Tokenizer> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::t2r_open_tokenizer(self.handle, &mut handle) })?;
        Ok(Tokenizer { handle })
    }

    /// The tokenizer of a translator's sources; the graph's own if there is no other.
    pub fn source_tokenizer(&mut self) -> Result<Tokenizer> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::t2r_open_source_tokenizer(self.handle, &mut handle) })?;
        Ok(Tokenizer { handle })
    }
}

impl Tokenizer {
    /// A tokenizer from the text of a tokenizer.json. `bos_token`: what an empty text becomes.
    pub fn of_json(json: &str, bos_token: Option<i64>) -> Result<Self> {
        let mut handle = ptr::null_mut();
        let bos_token = bos_token.unwrap_or(-1);
        check(unsafe { sys::t2r_make_tokenizer(json.as_ptr().cast(), json.len(), bos_token, &mut handle) })?;
        Ok(Self { handle })
    }

    /// The tokens of a text, with the tokenizer's special tokens around it. Bytes that are not UTF-8 are an error.
    pub fn encode(&mut self, text: impl AsRef<[u8]>) -> Result<Vec<i64>> {
        self.tokens(text.as_ref(), true)
    }

    /// As [`Tokenizer::encode`], without special tokens around it.
    pub fn encode_plain(&mut self, text: impl AsRef<[u8]>) -> Result<Vec<i64>> {
        self.tokens(text.as_ref(), false)
    }

    fn tokens(&mut self, text: &[u8], special: bool) -> Result<Vec<i64>> {
        let (mut tokens, mut count) = (ptr::null(), 0);
        check(unsafe {
            sys::t2r_encode(self.handle, text.as_ptr().cast(), text.len(), special.into(), &mut tokens, &mut count)
        })?;
        Ok(unsafe { list(tokens, count) }.to_vec())
    }

    /// The text of tokens, without special ones.
    pub fn decode(&mut self, tokens: &[i64]) -> Result<String> {
        text_of(|text, size| unsafe { sys::t2r_decode(self.handle, tokens.as_ptr(), tokens.len(), text, size) })
    }

    /// Streams the text of tokens that follow a prompt, without the prompt's text.
    pub fn stream(&mut self, prompt: &[i64]) -> Result<Stream> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::t2r_open_stream(self.handle, prompt.as_ptr(), prompt.len(), &mut handle) })?;
        Ok(Stream { handle })
    }
}

impl Stream {
    /// From here on, end the text before the first of these that occurs. A possible beginning of one is held back.
    pub fn stop_at(&mut self, texts: &[impl AsRef<str>]) -> Result<()> {
        let given = Words::new(texts)?;
        check(unsafe { sys::t2r_stop_at(self.handle, given.pointers.as_ptr(), given.pointers.len()) })
    }

    /// Whether one of them has occurred; later tokens give no text.
    pub fn stopped(&mut self) -> Result<bool> {
        let mut found = 0;
        check(unsafe { sys::t2r_stopped(self.handle, &mut found) })?;
        Ok(found != 0)
    }

    /// The text that this token completes, perhaps empty.
    pub fn feed(&mut self, token: i64) -> Result<String> {
        text_of(|text, size| unsafe { sys::t2r_feed(self.handle, token, text, size) })
    }

    /// The text held back for the rest of a character.
    pub fn end(&mut self) -> Result<String> {
        text_of(|text, size| unsafe { sys::t2r_end_stream(self.handle, text, size) })
    }
}

fn text_of(call: impl FnOnce(*mut *const c_char, *mut usize) -> sys::t2r_kind) -> Result<String> {
    let (mut text, mut size) = (ptr::null(), 0);
    check(call(&mut text, &mut size))?;
    Ok(String::from_utf8_lossy(unsafe { list(text.cast::<u8>(), size) }).into_owned())
}

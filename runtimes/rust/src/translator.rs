//! Translators: sources in, translations out.

use std::ptr;

use crate::decoder::{list, Decoder};
use crate::error::{check, Result};
use crate::options::Beam;
use crate::sys;

/// A translation that a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    pub tokens: Vec<i64>,
    pub score: f64,
}

impl Decoder {
    /// Read sources; the start tokens of their translations come next. The batch becomes the number of sources.
    pub fn encode_sources<R: AsRef<[i64]>>(&mut self, sources: &[R]) -> Result<()> {
        let longest = sources.iter().map(|source| source.as_ref().len()).max().unwrap_or(0);
        let lengths: Vec<i64> = sources.iter().map(|source| source.as_ref().len() as i64).collect();
        let mut tokens = vec![0; sources.len() * longest];
        for (row, source) in sources.iter().enumerate() {
            tokens[row * longest..][..source.as_ref().len()].copy_from_slice(source.as_ref());
        }
        check(unsafe {
            sys::t2r_encode_sources(self.handle, tokens.as_ptr(), lengths.as_ptr(), sources.len(), longest)
        })
    }

    /// Translate a source by beam search, best first.
    pub fn translate(&mut self, source: &[i64], beam: &Beam) -> Result<Vec<Translation>> {
        let (given, mut found) = (beam.raw(self.handle)?, 0);
        check(unsafe { sys::t2r_translate(self.handle, source.as_ptr(), source.len(), &given, &mut found) })?;
        (0..found).map(|index| self.translation(index)).collect()
    }

    fn translation(&mut self, index: usize) -> Result<Translation> {
        let (mut tokens, mut count, mut score) = (ptr::null(), 0, 0.0);
        check(unsafe { sys::t2r_translation(self.handle, index, &mut tokens, &mut count, &mut score) })?;
        Ok(Translation { tokens: unsafe { list(tokens, count) }.to_vec(), score })
    }
}

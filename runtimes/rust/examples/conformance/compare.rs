//! Golden arrays, and comparisons with them.

use t2r::{Decoder, Tensor};

use crate::json::Json;
use crate::Outcome;

/// Row-major.
pub struct Array {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Array {
    pub fn of(value: &Json) -> Outcome<Self> {
        let shape: Vec<usize> = value.at("shape")?.wholes()?.iter().map(|&dim| dim as usize).collect();
        let data: Vec<f64> = value.at("data")?.list()?.iter().map(Json::real).collect::<Outcome<_>>()?;
        require(data.len() == shape.iter().product::<usize>(), "an array of another size than its shape")?;
        Ok(Self { shape, data })
    }

    /// One T of an array (B, T, N) or (B, T), rows concatenated.
    pub fn column(&self, t: usize) -> Vec<f64> {
        let size = self.shape.get(2).copied().unwrap_or(1);
        let rows = 0..self.shape[0];
        rows.flat_map(|row| &self.data[(row * self.shape[1] + t) * size..][..size]).copied().collect()
    }

    /// Tokens (B, T) of a range of T: one list per sequence.
    pub fn tokens(&self, from: usize, to: usize) -> Vec<Vec<i64>> {
        let rows = self.data.chunks(self.shape[1]);
        rows.map(|row| row[from..to].iter().map(|&token| token as i64).collect()).collect()
    }
}

pub fn require(good: bool, why: impl Into<String>) -> Outcome<()> {
    if good {
        Ok(())
    } else {
        Err(why.into().into())
    }
}

pub fn same<T: PartialEq + std::fmt::Debug>(found: T, wanted: T, what: &str) -> Outcome<()> {
    let short = |value: &T| format!("{value:?}").chars().take(100).collect::<String>();
    require(found == wanted, format!("{what}: {} for {}", short(&found), short(&wanted)))
}

pub fn near(found: &[f32], wanted: &[f64], bound: f64, what: &str) -> Outcome<()> {
    same(found.len(), wanted.len(), what)?;
    let worst = found.iter().zip(wanted).map(|(&one, other)| (f64::from(one) - other).abs());
    let worst = worst.fold(0.0, |most, error| if error <= most { most } else { error }); // NaN propagates
    require(worst <= bound, format!("{what}: off by {worst:.3e} of {bound:.3e}"))
}

pub fn logits_bound(golden: &Json) -> Outcome<f64> {
    golden.at("tolerance")?.at("logits_absolute")?.real()
}

/// Check all states against the golden ones, within the tolerance.
pub fn states(decoder: &mut Decoder, golden: &Json, wanted: &Json) -> Outcome<()> {
    let relative = golden.at("tolerance")?.at("state_relative_to_its_largest")?.real()?;
    let found = decoder.states()?;
    for (name, wanted) in wanted.map()? {
        let wanted = Array::of(wanted)?;
        let state = found.iter().find(|state| state.name == *name).ok_or(format!("no state {name}"))?;
        require(state.shape.iter().map(|&dim| dim as usize).eq(wanted.shape), format!("the shape of {name}"))?;
        let largest = wanted.data.iter().fold(0.0, |most: f64, number| most.max(number.abs()));
        near(&numbers(state), &wanted.data, relative * largest, name)?;
    }
    Ok(())
}

/// No golden file has an integer that float32 rounds, nor states of float16.
pub fn numbers(state: &Tensor) -> Vec<f32> {
    let size = if state.dtype == "int64" { 8 } else { 4 };
    let parts = state.data.chunks(size);
    parts
        .map(|part| match state.dtype.as_str() {
            "float32" => f32::from_ne_bytes(part.try_into().unwrap_or_default()),
            "int32" => i32::from_ne_bytes(part.try_into().unwrap_or_default()) as f32,
            _ => i64::from_ne_bytes(part.try_into().unwrap_or_default()) as f32,
        })
        .collect()
}

/// Set the states to golden ones.
pub fn set(decoder: &mut Decoder, golden: &Json) -> Outcome<()> {
    let mut given = decoder.states()?;
    for state in &mut given {
        let wanted = Array::of(golden.at(&state.name)?)?;
        state.shape = wanted.shape.iter().map(|&dim| dim as i64).collect();
        let bytes = |&number: &f64| match state.dtype.as_str() {
            "float32" => (number as f32).to_ne_bytes().to_vec(),
            "int32" => (number as i32).to_ne_bytes().to_vec(),
            _ => (number as i64).to_ne_bytes().to_vec(),
        };
        state.data = wanted.data.iter().flat_map(bytes).collect();
    }
    Ok(decoder.set_states(&given, 0)?)
}

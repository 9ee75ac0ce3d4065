//! Masks for dropout, scaled as PyTorch scales them.
//!
//! On the CPU they come from ChaCha8 and need no lock: a mask of the tutorial's network takes some microseconds, where
//! seeding libtorch's generator under the process's lock would take as long and hold up the other trainers. On a GPU
//! they are drawn there, under the lock, which is held only until the kernel is queued.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tch::{Device, Kind, TchError, Tensor};

use super::rng;

/// Where the numbers of one layer in one forward come from (M-3).
#[derive(Clone, Copy, Debug)]
pub struct MaskSource {
    pub dropout_seed: u64,
    /// FNV-1a of the module's name.
    pub module: u64,
    pub layer: u64,
    /// Tells several masks of one layer apart.
    pub number: u64,
}

impl MaskSource {
    pub fn new(dropout_seed: u64, module: &str, layer: u64) -> MaskSource {
        let module = module.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        MaskSource { dropout_seed, module, layer, number: 0 }
    }

    pub fn numbered(self, number: u64) -> MaskSource {
        MaskSource { number, ..self }
    }

    /// For libtorch's own generator.
    pub fn seed(self) -> u64 {
        self.generator().next_u64()
    }

    fn generator(self) -> ChaCha8Rng {
        let mut seed = [0; 32];
        let words = [self.dropout_seed, self.module, self.layer, self.number];
        for (bytes, word) in seed.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        ChaCha8Rng::from_seed(seed)
    }
}

/// `x` with each element zeroed with probability `p` and the others divided by `1 - p`.
pub fn elements(x: &Tensor, p: f64, source: MaskSource) -> Result<Tensor, TchError> {
    match p {
        0.0 => Ok(x.shallow_clone()),
        _ => x.f_mul(&mask(&x.size(), p, source, x)?),
    }
}

/// As [`elements`], for whole channels of `x` (N, C, ...).
pub fn channels(x: &Tensor, p: f64, source: MaskSource) -> Result<Tensor, TchError> {
    if p == 0.0 {
        return Ok(x.shallow_clone());
    }
    let mut shape = x.size();
    shape.iter_mut().skip(2).for_each(|size| *size = 1);
    x.f_mul(&mask(&shape, p, source, x)?)
}

/// 0 with probability `p`, else 1/(1-p); dtype and device of `like`.
fn mask(shape: &[i64], p: f64, source: MaskSource, like: &Tensor) -> Result<Tensor, TchError> {
    let (device, kind) = (like.device(), like.f_kind()?);
    if p >= 1.0 {
        return Tensor::f_zeros(shape, (kind, device));
    }
    let scale = 1.0 / (1.0 - p);
    let mut generator = source.generator();
    if device != Device::Cpu {
        return rng::seeded(generator.next_u64(), || {
            Tensor::f_empty(shape, (kind, device))?.f_bernoulli_float_(1.0 - p)?.f_mul_scalar_(scale)
        });
    }
    let elements = usize::try_from(shape.iter().product::<i64>()).unwrap_or(0);
    // A draw below this is dropped; 2^32 steps make `p` exact enough for any mask.
    let dropped_below = (p * 4_294_967_296.0) as u64;
    let scale = scale as f32;
    let mut values = vec![0.0; elements];
    let mut bytes = [0; 4096];
    for values in values.chunks_mut(bytes.len() / 4) {
        generator.fill_bytes(&mut bytes[..values.len() * 4]);
        for (value, draw) in values.iter_mut().zip(bytes.chunks_exact(4)) {
            let draw = u32::from_le_bytes(draw.try_into().expect("four bytes"));
            *value = if u64::from(draw) < dropped_below { 0.0 } else { scale };
        }
    }
    let mask = Tensor::f_from_slice(&values)?.f_view(shape)?;
    if kind == Kind::Float { Ok(mask) } else { mask.f_totype(kind) }
}

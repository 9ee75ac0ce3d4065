//! The numbers that a file's text becomes, in memory or, where a byte is a number, in the file.

use pstrain_plugin::{Context, Result, data, ensure};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// A file's numbers, in as few bytes each as they fit in.
#[derive(Debug)]
pub enum Tokens {
    Bytes(Vec<u8>),
    Pairs(Vec<u16>),
    Words(Vec<u32>),
    /// A file whose bytes are the numbers.
    Disk {
        name: String,
        file: File,
        count: u64,
    },
}

impl Tokens {
    /// `numbers` of which none is above `largest`.
    ///
    /// # Errors
    /// If the memory does not hold them.
    pub fn collect(name: &str, largest: u32, numbers: impl Iterator<Item = Result<u32>>) -> Result<Tokens> {
        let mut tokens = match largest {
            0..=0xff => Tokens::Bytes(Vec::new()),
            0x100..=0xffff => Tokens::Pairs(Vec::new()),
            _ => Tokens::Words(Vec::new()),
        };
        for number in numbers {
            let number = number?;
            let pushed = match &mut tokens {
                Tokens::Bytes(all) => push(all, number as u8),
                Tokens::Pairs(all) => push(all, number as u16),
                Tokens::Words(all) => push(all, number),
                Tokens::Disk { .. } => true,
            };
            ensure!(
                pushed,
                "`{name}` does not fit into the plug-in's memory\nhint: raise `plugins.memory_mb`; of `unit = \"bytes\"` files \
                 may have any size"
            );
        }
        Ok(tokens)
    }

    /// The bytes of a file, which stay there if they are more than `in_memory`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn bytes(name: &str, in_memory: u64) -> Result<Tokens> {
        let file = data::open(name)?;
        let count = file.metadata().with_context(|| format!("cannot read `{name}`"))?.len();
        if count > in_memory {
            return Ok(Tokens::Disk { name: name.to_owned(), file, count });
        }
        Ok(Tokens::Bytes(data::read(name)?))
    }

    pub fn count(&self) -> u64 {
        match self {
            Tokens::Bytes(all) => all.len() as u64,
            Tokens::Pairs(all) => all.len() as u64,
            Tokens::Words(all) => all.len() as u64,
            Tokens::Disk { count, .. } => *count,
        }
    }

    /// Those from `start` on.
    ///
    /// # Errors
    /// If the file has changed.
    pub fn read(&mut self, start: u64, to: &mut [i64]) -> Result<()> {
        let range = start as usize..start as usize + to.len();
        match self {
            Tokens::Bytes(all) => widen(&all[range], to),
            Tokens::Pairs(all) => widen(&all[range], to),
            Tokens::Words(all) => widen(&all[range], to),
            Tokens::Disk { name, file, .. } => {
                let mut bytes = vec![0; to.len()];
                file.seek(SeekFrom::Start(start))
                    .and_then(|_| file.read_exact(&mut bytes))
                    .with_context(|| format!("cannot read `{name}` at byte {start}"))?;
                widen(&bytes, to);
            }
        }
        Ok(())
    }
}

fn push<T>(all: &mut Vec<T>, number: T) -> bool {
    let room = all.len() < all.capacity() || all.try_reserve(all.len().max(1024)).is_ok();
    if room {
        all.push(number);
    }
    room
}

fn widen<T: Copy + Into<i64>>(from: &[T], to: &mut [i64]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.into());
}

//! Rights that whoever started the program does not have.

use std::fs;

use nix::unistd::{getegid, geteuid, getgid, getuid};

use super::exit::Failure;

/// A program that loads code from where its user says, and starts itself again for it, must not have them. (The loader, which
/// then leaves LD_PRELOAD out, would have it start without end.)
///
/// # Errors
/// The program has a set-user-ID bit, a set-group-ID bit or capabilities of its own.
pub fn none() -> Result<(), Failure> {
    let differ = getuid() != geteuid() || getgid() != getegid();
    // Another user's process may not read it: then the users differ.
    let secure = fs::read("/proc/self/auxv").is_ok_and(|vector| is_secure(&vector));
    if !differ && !secure {
        return Ok(());
    }
    Err(Failure::usage(
        "this program has rights that whoever starts it has not: a set-user-ID or set-group-ID bit, or capabilities; it \
         loads code where its user says, so it does not start with them\n  \
         hint: `chmod ug-s` or `setcap -r` takes them from the file",
    ))
}

/// Says so the kernel's auxiliary vector (getauxval(3)): pairs of words?
fn is_secure(vector: &[u8]) -> bool {
    const AT_SECURE: usize = 23;
    let word = |bytes: &[u8]| usize::from_ne_bytes(bytes.try_into().expect("a word"));
    const WORD: usize = size_of::<usize>();
    let mut pairs = vector.chunks_exact(2 * WORD).map(|pair| (word(&pair[..WORD]), word(&pair[WORD..])));
    pairs.any(|pair| pair == (AT_SECURE, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_whether_the_program_has_more_rights_than_its_user() {
        let vector = |pairs: &[[usize; 2]]| -> Vec<u8> {
            pairs.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect()
        };
        assert!(is_secure(&vector(&[[6, 4096], [23, 1], [0, 0]])));
        // 23 as a value means nothing.
        assert!(!is_secure(&vector(&[[1, 23], [23, 0], [0, 0]])));
        assert!(!is_secure(&fs::read("/proc/self/auxv").unwrap()));
    }
}

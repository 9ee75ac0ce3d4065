//! A run as people look at it, while it goes on and afterwards.
//!
//! All of it comes from the files in the run's folder, so nothing here can hold up or end a training: whoever looks reads what
//! ranks have written ([`run`], [`tail`]), keeps a bounded part of it ([`series`]), and shows that: in a terminal ([`top`]).

pub mod run;
mod series;
mod tail;
pub mod top;

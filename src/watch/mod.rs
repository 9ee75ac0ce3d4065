//! A run as people look at it, while it goes on and afterwards.
//!
//! All of it comes from the files in the run's folder, so nothing here can hold up or end a training: whoever looks reads what
//! ranks have written ([`run`], [`tail`]), keeps a bounded part of it ([`series`]), and shows that: in a terminal ([`top`]).

pub mod explain;
pub mod export;
pub mod follow;
mod page;
pub mod ranks;
pub mod report;
pub mod run;
mod series;
pub mod serve;
pub mod standstill;
mod tail;
mod timeline;
pub mod top;
mod trace_file;
mod view;

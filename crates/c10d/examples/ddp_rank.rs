//! One rank of a data-parallel job whose other ranks may be Python's: `tests/interop/ddp_rank.py` does the same.
//!
//! ```text
//! export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2
//! RANK=0 python crates/c10d/tests/interop/ddp_rank.py none & RANK=1 cargo run -p c10d --example ddp_rank none
//! ```
//!
//! The argument is the communication hook: `none`, `fp16`, `bf16`, or `unused` for a model of which each rank leaves a
//! part unused. Every rank prints the same: for each step and parameter the sum and the norm of the gradient.

#[path = "../tests/it/small_model.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "the tests use more of it, and fail by panicking")]
mod small_model;

use std::env;
use std::error::Error;

use c10d::reducer::{Hook, Reducer, ReducerOptions};
use c10d::{Options, ProcessGroup, rendezvous};
use small_model::{Batch, Mlp};
use tch::{Kind, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    let what = env::args().nth(1).unwrap_or_else(|| "none".into());
    let (store, rank, size) = rendezvous("env://", None)?;
    let group = ProcessGroup::new(&store, rank, size, Options::default())?;

    let model = Mlp::new(1 + 50 * i64::from(rank));
    let options = ReducerOptions {
        hook: match what.as_str() {
            "fp16" => Hook::Fp16,
            "bf16" => Hook::Bf16,
            _ => Hook::None,
        },
        bucket_cap_mb: 0.001,
        first_bucket_mb: 0.001,
        find_unused_parameters: what == "unused",
        ..ReducerOptions::default()
    };
    let mut reducer = Reducer::new(&model.parameters, &[], &group, options)?;
    for step in 0..5 {
        let batch = Batch::whole(step, 16).part(rank, size);
        reducer.zero_grad()?;
        reducer.before_forward()?;
        let loss = if what == "unused" && rank == 1 {
            model.parameters[0].square().mean(Kind::Float)
        } else {
            model.loss(&batch)
        };
        reducer.backward(&loss)?;
        for (i, gradient) in model.parameters.iter().map(Tensor::grad).enumerate() {
            let sum = gradient.sum(Kind::Double).double_value(&[]);
            let norm = gradient.to_kind(Kind::Double).norm().double_value(&[]);
            println!("{step} {i} {sum:.9} {norm:.9}");
        }
        model.step();
    }
    group.barrier()?;
    Ok(())
}

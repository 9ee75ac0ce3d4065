//! What bad job files get.

use pstrain::job::{self, JobText, Sources};

#[test]
fn the_shipped_jobs_prove() {
    let text = include_str!("../jobs/mnist_ps.toml");
    let resolved = job::load(&Sources {
        file: JobText { name: "jobs/mnist_ps.toml", text },
        env: vec![],
        overrides: &[],
    });
    match resolved {
        Ok(r) => println!("{}\n{:#?}", r.toml, r.job),
        Err(e) => panic!("{e}"),
    }
}

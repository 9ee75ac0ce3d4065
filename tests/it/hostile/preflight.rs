//! What differs between the ranks of a job is told before the first step, with the values and who has them.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::program::*;
use crate::support::regression;

/// Each rank with a data folder of its own, which `rows` fills.
fn world(
    folder: &Path,
    ranks: u32,
    rows: impl Fn(u32) -> String,
    more: impl Fn(u32) -> Vec<String>,
) -> Vec<Output> {
    let port = free_port().to_string();
    let start_rank = |rank: u32| {
        let root = folder.join(format!("data{rank}"));
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("rows.csv"), rows(rank)).unwrap();
        let mut command = pstrain(folder);
        command.args(["run", "job.toml", "--run-dir", "RUN", "--master-port", &port]);
        command.args(["--rank", &rank.to_string(), "--world-size", &ranks.to_string()]);
        command.args(["--set", &format!("data.root={}", root.display())]).args(more(rank));
        start(&mut command)
    };
    let started: Vec<_> = (0..ranks).map(start_rank).collect();
    started.into_iter().map(wait).collect()
}

fn table(rows: usize) -> String {
    format!("x,y\n{}", "0.5,1\n".repeat(rows))
}

#[test]
fn trainers_with_other_numbers_of_samples_take_no_step() {
    for (place, ranks, first) in [("place = \"server\"", 3, 1), ("place = \"trainer\"", 2, 0)] {
        let folder = tempfile::tempdir().unwrap();
        regression(folder.path(), place, "", &[]);
        let outputs = world(
            folder.path(),
            ranks,
            |rank| table(if rank == ranks - 1 { 23 } else { 24 }),
            |_| Vec::new(),
        );
        let told = format!("samples of data.train differ: 23 on rank {}; 24 on rank {first}", ranks - 1);
        assert_code(&outputs[first as usize], 2);
        for output in &outputs[1..] {
            assert!(stderr(output).contains(&told), "{place}: {}", stderr(output));
            assert_ne!(output.status.code(), Some(0));
        }
        assert!(records(folder.path(), "step").is_empty(), "{place}");
    }
}

#[test]
fn columns_in_another_order_are_the_same_fields() {
    let folder = tempfile::tempdir().unwrap();
    regression(folder.path(), "place = \"server\"", "", &[]);
    let rows = |rank: u32| if rank == 2 { format!("y,x\n{}", "1,0.5\n".repeat(24)) } else { table(24) };
    for output in &world(folder.path(), 3, rows, |_| Vec::new()) {
        assert_code(output, 0);
    }
}

/// Replicas would take the first one's weights, whatever the others were given.
#[test]
fn replicas_that_were_given_other_weights_take_no_step() {
    let folder = tempfile::tempdir().unwrap();
    regression(folder.path(), "place = \"trainer\"", "", &[]);
    let weights = |rank: u32| {
        let path = folder.path().join(format!("start{rank}.safetensors"));
        let value = f64::from(rank);
        let named = |name: &str, shape: &[i64]| {
            (name.to_owned(), tch::Tensor::full(shape, value, (tch::Kind::Float, tch::Device::Cpu)))
        };
        pstrain::model::save(&path, &[named("0.weight", &[1, 1]), named("0.bias", &[1])]).unwrap();
        let other = folder.path().join(format!("of{rank}"));
        fs::create_dir_all(&other).unwrap();
        fs::rename(path, other.join("start.safetensors")).unwrap();
        vec!["--set".into(), format!("modules.net.weights={}", other.join("start.safetensors").display())]
    };
    let outputs = world(folder.path(), 2, |_| table(24), weights);
    assert_code(&outputs[0], 2);
    let said = stderr(&outputs[0]);
    assert!(said.contains("files of modules.net.weights differ: SHA-256 "), "{said}");
    assert!(said.contains("on rank 0; SHA-256 ") || said.contains("on rank 1; SHA-256 "), "{said}");
}

/// Somebody's environment has put another one into the process: it is not believed to be the right one.
#[test]
fn a_libtorch_of_another_version_that_is_loaded_already_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let torch = folder.path().join("torch");
    fs::create_dir_all(torch.join("lib")).unwrap();
    // Any library, by that name.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let any =
        maps.lines().find_map(|line| line.ends_with("/libm.so.6").then(|| &line[line.find('/').unwrap()..]));
    fs::copy(any.unwrap(), torch.join("lib/libtorch_cpu.so")).unwrap();
    fs::write(torch.join("version.py"), "__version__ = '2.9.1+cpu'\n").unwrap();
    let mut command = spawn(folder.path(), None, &["train.steps=1"]);
    let output = finish(command.env("LD_PRELOAD", torch.join("lib/libtorch_cpu.so")));
    assert_code(&output, 2);
    let said = stderr(&output);
    assert!(said.starts_with("error: libtorch 2.9.1 of `") && said.contains("LD_PRELOAD"), "{said}");
}

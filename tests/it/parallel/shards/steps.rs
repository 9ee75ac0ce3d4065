//! What travels, how steps meet, and what owners refuse.

use pstrain::parallel::calls::shard;
use pstrain::rpc::Call;

use super::*;

// ---- What travels ----

#[test]
fn bytes_grow_with_the_rows_of_a_batch_and_not_with_the_table() {
    let sent = |rows: i64, ids: i64| -> u64 {
        let world = World::start(&sharded("rows", 2, "[1]", &embedding(rows)), Consistency::Async);
        world.train(
            move |rank, mut trainer| {
                // As many at each end of the table.
                let half = Tensor::arange(ids / 2, (Kind::Int64, Device::Cpu));
                let ids = Tensor::cat(&[&half, &(&half + (rows - ids / 2))], 0).unsqueeze(-1);
                for _ in 0..3 + rank {
                    trainer.step(&ids, loss);
                }
            },
            &sgd(0.1),
        );
        let sent = world.meshes.iter().flat_map(|mesh| mesh.payload_bytes_sent()).sum();
        world.end();
        sent
    };
    let (small, large) = (sent(1_000, 64), sent(10_000_000, 64));
    assert_eq!(small, large, "a table of ten thousand times the rows");
    // 7 steps; a row travels as an id, as numbers, and as their gradients.
    let row = 8 + 2 * 4 * DIM as u64;
    assert_eq!(sent(1_000, 128) - small, 7 * 64 * row);
}

// ---- How steps meet ----

#[test]
fn no_update_of_fifty_asynchronous_steps_of_two_trainers_is_lost() {
    const STEPS: i64 = 50;
    const ROWS: i64 = 30;
    for shards in ["rows", "hash"] {
        let world = World::start(&sharded(shards, 2, "[1]", &embedding(ROWS)), Consistency::Async);
        let all = Tensor::arange(ROWS, (Kind::Int64, Device::Cpu)).unsqueeze(-1);
        let before = world.module(0).predict(std::slice::from_ref(&all)).unwrap();
        world.train(
            move |_, mut trainer| {
                let ids = Tensor::arange(ROWS, (Kind::Int64, Device::Cpu)).unsqueeze(-1);
                for _ in 0..STEPS {
                    // Its gradient is 1 for each number, whatever the row holds by then.
                    trainer.step(&ids, |rows| rows.sum(Kind::Float));
                }
            },
            &sgd(0.125),
        );
        for server in &world.servers[TRAINERS as usize..] {
            assert_eq!(server.shards()[0].updates().0, 100, "{shards}");
        }
        let after = world.module(0).predict(std::slice::from_ref(&all)).unwrap();
        let difference: Tensor = before - after - 2.0 * STEPS as f64 * 0.125;
        assert!(difference.abs().max().double_value(&[]) < 1e-4, "{shards}");
        world.end();
    }
}

#[test]
fn an_update_never_breaks_the_backward_of_another_trainer_and_counts_as_its_staleness() {
    let world = World::start(&sharded("rows", 2, "[1]", &embedding(10)), Consistency::Async);
    let trainer = |rank: u32| Trainer {
        autograd: world.autograds[rank as usize].clone(),
        module: world.module(rank),
        optimizer: world.optimizer(rank, &sgd(0.1)),
    };
    let (mut slow, mut fast) = (trainer(0), trainer(1));
    let ids = Tensor::from_slice(&[1i64, 2, 9]).unsqueeze(-1);
    let context = slow.autograd.context();
    let output = look_up(&slow.module, &context, std::slice::from_ref(&ids)).unwrap();
    let read = output.detach().copy();
    assert_eq!(fast.step(&ids, |rows| rows.square().sum(Kind::Float)).1, 0);
    // The gradient of a square is twice what was read.
    assert_eq!(slow.finish(&context, &output.square().sum(Kind::Float), 3), 1);
    let expected: Tensor = &read - 0.1 * 2.0 * &read * 2.0;
    let difference = (world.module(0).predict(std::slice::from_ref(&ids)).unwrap() - expected)
        .abs()
        .max()
        .double_value(&[]);
    assert!(difference < 1e-6, "{difference}");
    drop((context, slow, fast));
    world.end();
}

#[test]
fn evaluation_sees_the_first_values_of_rows_and_makes_none() {
    let world = World::start(&sharded("hash", 2, "[1]", &embedding(10)), Consistency::Async);
    let (seen, unseen) =
        (Tensor::from_slice(&[5i64, 1 << 40]).unsqueeze(-1), Tensor::from_slice(&[77i64]).unsqueeze(-1));
    let module = world.module(0);
    let first = module.predict(std::slice::from_ref(&seen)).unwrap();
    let _ = module.predict(std::slice::from_ref(&unseen)).unwrap();
    assert!(world.rows().is_empty());
    let context = world.autograds[0].context();
    assert_eq!(look_up(&module, &context, std::slice::from_ref(&seen)).unwrap().detach(), first);
    assert_eq!(world.rows().into_keys().collect::<Vec<_>>(), [5, 1 << 40]);
    drop((context, module));
    world.end();
}

/// FI-1
#[test]
fn gradients_of_rows_that_are_not_finite_change_no_row_and_are_told() {
    let world = World::start(&sharded("rows", 2, "[1]", &embedding(10)), Consistency::Async);
    let (module, mut optimizer) = (world.module(0), world.optimizer(0, &sgd(0.1)));
    let ids = Tensor::from_slice(&[1i64, 2]).unsqueeze(-1);
    let mut step = |loss: &dyn Fn(&Tensor) -> Tensor| {
        let context = world.autograds[0].context();
        let loss = loss(&look_up(&module, &context, std::slice::from_ref(&ids)).unwrap());
        assert!(loss.double_value(&[]).is_finite());
        let backward = world.autograds[0].backward(&context, &[loss], false);
        let stepping = optimizer.step(&context, &backward, 2).unwrap();
        backward.wait().unwrap();
        stepping.wait().unwrap().not_finite
    };
    assert_eq!(step(&loss), None);
    let before = world.rows();
    // A root has no slope at 0.
    let wrong = step(&|rows| (rows - rows.detach()).sqrt().sum(Kind::Float)).expect("told");
    assert!(wrong.starts_with("module `table`: the gradient of parameter `"), "{wrong}");
    assert!(wrong.ends_with(" is infinite"), "{wrong}");
    assert_eq!(world.rows(), before);
    assert_eq!(step(&loss), None);
    assert_ne!(world.rows(), before);
    drop((module, optimizer));
    world.end();
}

// ---- What is refused ----

#[test]
fn an_id_that_has_no_row_is_named_with_the_limit_and_the_module() {
    let world = World::start(&sharded("rows", 2, "[1]", &embedding(10)), Consistency::Async);
    let module = world.module(0);
    let said = |ids: &[i64]| {
        let context = world.autograds[0].context();
        format!("{:#}", look_up(&module, &context, &[Tensor::from_slice(ids).unsqueeze(-1)]).unwrap_err())
    };
    assert!(said(&[3, 10]).starts_with("module `table`: id 10 is not below num_embeddings = 10\n"));
    assert!(said(&[-2]).starts_with("module `table`: id -2 is negative\n"));
    drop(module);
    world.end();
}

#[test]
fn a_table_that_is_full_says_so_and_makes_no_row() {
    let world = World::start(&sharded("hash", 1, "[1]", &embedding(3)), Consistency::Async);
    let module = world.module(0);
    let rows_of = |ids: &[i64]| {
        let context = world.autograds[0].context();
        look_up(&module, &context, &[Tensor::from_slice(ids).unsqueeze(-1)])
    };
    let _ = rows_of(&[1, 2]).unwrap();
    let said = format!("{:#}", rows_of(&[1, 2, 300, 400]).unwrap_err());
    let expected = "module `table`: there is no room for the row of id 400: this rank holds num_embeddings = 3 rows at most";
    assert!(said.contains(expected), "{said}");
    assert_eq!(world.rows().len(), 2);
    let _ = rows_of(&[2, 300]).unwrap();
    drop(module);
    world.end();
}

#[test]
fn what_no_sharded_module_would_send_is_refused_by_the_owner() {
    let world = World::start(&sharded("rows", 2, "[1]", &embedding(10)), Consistency::Async);
    let module = world.module(0);
    let said = |method: &'static str, values: Vec<Value>| {
        let values = std::iter::once(module.updated()[0].clone().into()).chain(values).collect();
        world.meshes[0].call(Rank(2), method, Message::new(values)).wait().unwrap_err().message
    };
    let ids = |ids: &[i64]| vec![Value::Int(0), Tensor::from_slice(ids).into()];
    assert!(
        said(shard::LookUp::NAME, ids(&[7]))
            .contains("id 7 is not among the rows of this rank, from 0 to below 5")
    );
    assert!(said(shard::LookUp::NAME, ids(&[i64::MIN, i64::MAX])).contains("is not among the rows"));
    assert!(said(shard::LookUp::NAME, ids(&[2, 1])).contains("ids are to ascend"));
    assert!(said(shard::LookUp::NAME, ids(&[1, 1])).contains("ids are to ascend"));
    assert!(
        said(shard::LookUp::NAME, vec![Value::Int(0), Tensor::from_slice(&[1.0f32]).into()])
            .contains("ids are int64 [n]")
    );
    let momentum = r#"{"spec": {"type": "sgd", "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": false, "maximize": false}, "groups": []}"#;
    assert!(
        said(shard::Optimize::NAME, vec![momentum.into()])
            .contains("sgd with momentum cannot update single rows")
    );
    let terms = |lr_factor: f64, factor: Value| {
        let terms = [Value::Int(1), Value::Float(8.0), lr_factor.into(), factor, Value::Bool(false)];
        vec![Value::Nil, Value::List(terms.into())]
    };
    assert!(
        said(shard::Step::NAME, terms(f64::NAN, Value::Nil))
            .contains("a learning rate is not multiplied by NaN")
    );
    assert!(
        said(shard::Step::NAME, terms(1.0, (-0.5).into())).contains("gradients are not multiplied by -0.5")
    );
    let weightless =
        Value::List(vec![Value::Int(1), Value::Float(-1.0), 1.0.into(), Value::Nil, Value::Bool(false)]);
    assert!(said(shard::Step::NAME, vec![Value::Nil, weightless]).contains("a step does not weigh -1"));
    assert!(
        said(shard::Step::NAME, vec![Value::Nil, Value::List(vec![])])
            .contains("expected five terms of a step, found 0")
    );
    drop(module);
    world.end();
}

//! `optimizer.groups` and `modules.NAME.optimizer`: what does not fit is told.

use pstrain::optimizers::{Hindered, OPTIMIZERS, OptimizerSpec, that_apply_sparse, that_update_rows};

use super::{SOUND, load, replaced, said, set};

/// By their defaults, in which everything is off that they refuse.
#[test]
fn hints_name_the_optimizers_that_apply_sparse_gradients_and_update_rows() {
    let spec = |name: &str| -> OptimizerSpec {
        let job = load(SOUND, &[], &[&format!("optimizer={{ type = \"{name}\", lr = 0.1 }}")]).unwrap().job;
        job.training().unwrap().optimizer.spec.clone()
    };
    let can = |refuses: fn(&OptimizerSpec) -> Option<Hindered>| -> Vec<&str> {
        let names = OPTIMIZERS.iter().map(|entry| entry.name);
        names.filter(|name| refuses(&spec(name)).is_none()).collect()
    };
    let named = |hint: String| -> Vec<String> {
        hint.split(", or ").map(|one| one.split(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(named(that_apply_sparse()), can(OptimizerSpec::refuses_sparse));
    assert_eq!(named(that_update_rows()), can(OptimizerSpec::refuses_rows));
}

#[test]
fn a_group_says_only_what_differs() {
    let settings = [
        "optimizer.momentum=0.9",
        "optimizer.groups=[{match=[\"*.bias\", \"net.fc1.*\"], lr=0.5}, {match=[\"*.weight\"], momentum=0.0}]",
    ];
    let job = load(SOUND, &[], &settings).unwrap().job;
    let optimization = &job.training().unwrap().optimizer;
    let of = |name: &str| format!("{:?}", optimization.of(name));
    insta::assert_snapshot!(of("net.fc2.bias"), @"Sgd(Sgd { lr: 0.5, momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false, maximize: false })");
    insta::assert_snapshot!(of("net.fc1.weight"), @"Sgd(Sgd { lr: 0.5, momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false, maximize: false })");
    insta::assert_snapshot!(of("net.fc2.weight"), @"Sgd(Sgd { lr: 0.1, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false, maximize: false })");
    insta::assert_snapshot!(of("net.other"), @"Sgd(Sgd { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false, maximize: false })");
}

#[test]
fn mistakes_in_groups_are_told() {
    let with = |groups: &str| replaced("lr = 0.1", &format!("lr = 0.1\ngroups = {groups}"));
    insta::assert_snapshot!(with("[{ match = [\"*.bais\"], lr = 0.2 }]"), @r#"
    error: job `x.toml`: `optimizer.groups[0]` has a pattern that no parameter matches: "*.bais"
      from: x.toml, line 26
      hint: the 4 parameters are `net.fc1.weight` to `net.fc2.bias`
    "#);
    insta::assert_snapshot!(with("[{ lr = 0.2 }]"), @r#"
    error: job `x.toml`: `optimizer.groups[0].match` is missing
      from: x.toml, line 26
      hint: for example match = ["*.bias"]
    "#);
    insta::assert_snapshot!(with("[{ match = [\"*.bias\"], betas = [0.9, 0.99] }]"), @r"
    error: job `x.toml`: unknown key `optimizer.groups[0].betas`
      from: x.toml, line 26
      hint: known keys: match, lr, momentum, dampening, weight_decay, nesterov, maximize
    ");
    insta::assert_snapshot!(with("[{ match = [\"*.bias\"], nesterov = true }]"), @r"
    error: job `x.toml`: `optimizer.groups[0].nesterov` = true needs a momentum and no dampening; there are 0 and 0
      from: x.toml, line 26
      hint: for example momentum = 0.9, and leave dampening out
    ");
    insta::assert_snapshot!(with("[{ match = \"*.bias\", lr = -1 }]"), @r#"
    error: job `x.toml`: `optimizer.groups[0].match`: expected a list, found "*.bias"
      from: x.toml, line 26
      hint: for example [1, 2]
    error: job `x.toml`: `optimizer.groups[0].lr` = -1 is not above 0
      from: x.toml, line 26
      hint: use a number above 0
    "#);
    insta::assert_snapshot!(with("{ match = [\"*.bias\"] }"), @r#"
    error: job `x.toml`: `optimizer.groups`: expected a list, found { match = ["*.bias"] }
      from: x.toml, line 26
      hint: for example [1, 2]
    "#);
}

#[test]
fn mistakes_in_the_optimizer_of_a_module_are_told() {
    let with = |optimizer: &str| set(&[&format!("modules.net.optimizer={optimizer}")]);
    insta::assert_snapshot!(with("{ type = \"adm\" }"), @r#"
    error: job `x.toml`: `modules.net.optimizer.type` = "adm" is not one of sgd, adam, adamw, adagrad, adadelta, adamax, rmsprop, rprop, nadam, radam or lion
      from: option --set modules.net.optimizer={ type = "adm" }
      hint: did you mean "adam"?
    "#);
    insta::assert_snapshot!(with("{ type = \"adam\", momentum = 0.9 }"), @r#"
    error: job `x.toml`: unknown key `modules.net.optimizer.momentum`
      from: option --set modules.net.optimizer={ type = "adam", momentum = 0.9 }
      hint: known keys: type, groups, lr, betas, eps, weight_decay, amsgrad, maximize
    "#);
    insta::assert_snapshot!(with("{ lr = 0.1 }"), @r#"
    error: job `x.toml`: `modules.net.optimizer.type` is missing
      hint: for example type = "sgd"
    "#);
    insta::assert_snapshot!(with("{ type = \"sgd\", schedule = { type = \"cosine\" } }"), @r#"
    error: job `x.toml`: `modules.net.optimizer.schedule` = { type = "cosine" } is an option that this version does not have
      from: option --set modules.net.optimizer={ type = "sgd", schedule = { type = "cosine" } }
      hint: write it in [optimizer]: the learning rates of all modules follow it
    "#);
    insta::assert_snapshot!(with("{ type = \"sgd\", groups = [{ match = [\"fc1.*\"] }] }"), @r#"
    error: job `x.toml`: `modules.net.optimizer.groups[0]` has a pattern that no parameter matches: "fc1.*"
      from: option --set modules.net.optimizer={ type = "sgd", groups = [{ match = ["fc1.*"] }] }
      hint: the 4 parameters are `net.fc1.weight` to `net.fc2.bias`
    "#);
    // All modules have their own: the common one has nothing left to match.
    insta::assert_snapshot!(
        set(&["modules.net.optimizer={ type = \"adam\" }", "optimizer.groups=[{ match = [\"*\"], lr = 1 }]"]),
        @r#"
    error: job `x.toml`: `optimizer.groups[0]` has a pattern that no parameter matches: "*"
      from: option --set optimizer.groups=[{ match = ["*"], lr = 1 }]
      hint: no module is updated by this optimizer
    "#
    );
}

#[test]
fn mistakes_in_clipping_are_told() {
    let with = |settings: &[&str]| set(&[&["optimizer.clip_norm=1.0"], settings].concat());
    insta::assert_snapshot!(set(&["optimizer.clip_norm=0"]), @r"
    error: job `x.toml`: `optimizer.clip_norm` = 0 is not above 0
      from: option --set optimizer.clip_norm=0
      hint: use a number above 0
    ");
    insta::assert_snapshot!(set(&["modules.net.optimizer={ type = \"sgd\", clip_norm = 1 }"]), @r#"
    error: job `x.toml`: `modules.net.optimizer.clip_norm` = 1 is an option that this version does not have
      from: option --set modules.net.optimizer={ type = "sgd", clip_norm = 1 }
      hint: write it in [optimizer]: the norm is that of all parameters
    "#);
    insta::assert_snapshot!(with(&["modules.net.run=caller", "train.local_steps=4"]), @r"
    error: job `x.toml`: `optimizer.clip_norm` = 1.0 is over all parameters, and local steps are taken without asking for those elsewhere
      from: option --set optimizer.clip_norm=1.0
      hint: leave train.local_steps out
    ");
    insta::assert_snapshot!(with(&["optimizer.clip_value=0.5"]), @r"
    error: job `x.toml`: `optimizer.clip_value` = 0.5 and clip_norm both say how gradients are clipped
      from: option --set optimizer.clip_value=0.5
      hint: leave one of them out
    ");
    insta::assert_snapshot!(set(&["optimizer.clip_value=-1"]), @r"
    error: job `x.toml`: `optimizer.clip_value` = -1 is not above 0
      from: option --set optimizer.clip_value=-1
      hint: use a number above 0
    ");
    insta::assert_snapshot!(set(&["optimizer.clip=1.0"]), @r"
    error: job `x.toml`: unknown key `optimizer.clip`
      from: option --set optimizer.clip=1.0
      hint: did you mean `clip_norm`?
    ");
    let hybrid = SOUND.replace("[data]", "[modules.head]\nplace = \"trainer\"\nlayers = [\"relu\"]\n[data]");
    let hybrid = hybrid.replace("epochs = 2", "epochs = 2\nforward = [\"net\", \"head\"]");
    insta::assert_snapshot!(said(load(&hybrid, &[], &["optimizer.clip_norm=1.0"])), @r#"
    error: job `x.toml`: `optimizer.clip_norm` = 1.0 clips each trainer's gradients by a norm of its own, and replicas, which are to stay equal, would differ
      from: option --set optimizer.clip_norm=1.0
      hint: write consistency = "bsp" in [train]: then the norm is that of all trainers' gradients
    "#);
}

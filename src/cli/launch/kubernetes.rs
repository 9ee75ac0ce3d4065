//! Manifests for Kubernetes: an indexed Job, a JobSet, or Kubeflow's TrainJob. A pod is a rank.

use serde_json::{Value, json};

use super::args::{KubernetesArgs, KubernetesKind};
use super::manifest::Pods;
use super::planned::{Planned, head};
use super::{submit, words, yaml};
use crate::cli::exit::{DONE, Failure};
use crate::cli::stdout;
use crate::rpc::Token;

/// Letters of a name: a JobSet puts `-rank-0-4095` behind it, and a host's name has 63.
const MOST_LETTERS: usize = 48;
/// What the etcd of a cluster takes.
const MOST_BYTES: usize = 1 << 20;
const PORT: u16 = 29_500;

pub fn launch(args: &KubernetesArgs) -> Result<u8, Failure> {
    let planned = Planned::new(&args.common, (args.nodes, &format!("--nodes {}", args.nodes)))?;
    let job_text = std::fs::read_to_string(&planned.path)
        .map_err(|error| Failure::usage(format_args!("{}: {error}", planned.path.display())))?;
    if job_text.len() > MOST_BYTES {
        return Err(Failure::usage(format_args!(
            "the job has {} bytes, and a ConfigMap takes {MOST_BYTES}\n  hint: put long lists into files on the claim",
            job_text.len()
        )));
    }
    let name = planned.name.clone().unwrap_or_else(|| words::as_label(&planned.job.name, MOST_LETTERS));
    words::label("--name", &name, MOST_LETTERS)?;
    let secret = args.secret.clone().unwrap_or_else(|| format!("{name}-token"));
    for (option, value) in [("--namespace", &args.namespace), ("--claim", &args.claim)] {
        value.as_deref().map(|value| words::label(option, value, 63)).transpose()?;
    }
    words::label("--secret", &secret, 63)?;
    words::plain("--image", &args.image)?;
    words::plain("--cluster-domain", &args.cluster_domain)?;
    for (option, value) in [("--cpus", &args.cpus), ("--mem", &args.mem)] {
        value.as_deref().map(|value| quantity(option, value)).transpose()?;
    }
    if args.claim.is_none() && planned.saves() {
        eprintln!(
            "warning: without a claim what a pod saves is lost with it, unless the job saves to a bucket\n  \
             hint: --claim names a PersistentVolumeClaim that all pods may write to"
        );
    }
    let port = planned.port.unwrap_or(PORT);
    let pods = Pods { args, planned: &planned, name: &name, secret: &secret, port, job_text: &job_text };
    let text = manifests(&pods);
    if args.common.submit {
        ensure_secret(&pods)?;
        return submit::piped("kubectl", &["apply", "-f", "-"], &text);
    }
    stdout::as_it_is(text.trim_end())?;
    Ok(DONE)
}

/// A number of Kubernetes: `4`, `0.5`, `500m`, `16Gi`.
fn quantity(option: &str, value: &str) -> Result<(), Failure> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &value[digits.len()..];
    let units = ["", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"];
    match digits.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() && units.contains(&unit) => Ok(()),
        _ => Err(Failure::usage(format_args!(
            "{option}: {value:?} is not a quantity of Kubernetes\n  hint: write cores as 4 or 500m, memory as 16Gi"
        ))),
    }
}

/// All objects, in the order in which they are made.
fn manifests(pods: &Pods<'_>) -> String {
    let objects = match pods.args.kind {
        KubernetesKind::Job => vec![pods.config_map(), pods.service(), job(pods)],
        KubernetesKind::Jobset => vec![pods.config_map(), job_set(pods)],
        KubernetesKind::Trainjob => vec![pods.config_map(), training_runtime(pods), train_job(pods)],
    };
    let documents: Vec<String> = objects.iter().map(yaml::document).collect();
    let namespace = pods.args.namespace.as_ref().map(|name| format!(" -n {name}")).unwrap_or_default();
    let what = "Written by `pstrain launch kubernetes`; a pod is a rank.";
    format!(
        "{}# Its pods share a secret, which has to be there first:\n\
         #   pstrain token | tr -d '\\n' | kubectl{namespace} create secret generic {} --from-file=PSTRAIN_TOKEN=/dev/stdin\n\
         {}",
        head(pods.planned, what),
        pods.secret,
        documents.join("---\n")
    )
}

fn job(pods: &Pods<'_>) -> Value {
    // Who is evicted has not failed. The others lose it, end with 3, and count: each restart costs as many pods.
    let evicted = json!({ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] });
    let template = pods.template(&format!("{0}-0.{0}", pods.name), Some(pods.name));
    let limit = pods.args.restarts.saturating_mul(pods.planned.world_size);
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": pods.metadata(),
        "spec": pods.indexed(limit, pods.failure_policy(&[evicted]), template),
    })
}

/// The jobs of a set: one, whose failure has the whole set begin again.
fn rank_jobs(pods: &Pods<'_>, name: &str, host: &str) -> Value {
    let indexed = pods.indexed(0, pods.failure_policy(&[]), pods.template(host, None));
    json!([{ "name": name, "template": { "spec": indexed } }])
}

/// What ends a set for good: the job said that another try would fail as well.
fn set_policy(pods: &Pods<'_>) -> Value {
    json!({
        "maxRestarts": pods.args.restarts,
        "rules": [{
            "name": "hopeless",
            "action": "FailJobSet",
            "onJobFailureReasons": ["PodFailurePolicy"],
        }],
    })
}

fn job_set(pods: &Pods<'_>) -> Value {
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": pods.metadata(),
        "spec": {
            "network": { "enableDNSHostnames": true, "publishNotReadyAddresses": true, "subdomain": pods.name },
            "failurePolicy": set_policy(pods),
            "replicatedJobs": rank_jobs(pods, "rank", &format!("{0}-rank-0-0.{0}", pods.name)),
        },
    })
}

/// What the TrainJob runs: a JobSet with the names that Kubeflow's Trainer looks for.
fn training_runtime(pods: &Pods<'_>) -> Value {
    let mut metadata = pods.metadata();
    metadata["labels"]["trainer.kubeflow.org/framework"] = "torch".into();
    let mut jobs = rank_jobs(pods, "node", &format!("{0}-node-0-0.{0}", pods.name));
    jobs[0]["template"]["metadata"] =
        json!({ "labels": { "trainer.kubeflow.org/trainjob-ancestor-step": "trainer" } });
    // The Trainer looks for a container by this name, for its variables.
    let spec = &mut jobs[0]["template"]["spec"];
    spec["template"]["spec"]["containers"][0]["name"] = "node".into();
    spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] = "node".into();
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata,
        "spec": {
            "mlPolicy": { "numNodes": pods.planned.world_size, "torch": {} },
            "template": {
                "spec": {
                    "network": { "enableDNSHostnames": true, "publishNotReadyAddresses": true },
                    "failurePolicy": set_policy(pods),
                    "replicatedJobs": jobs,
                },
            },
        },
    })
}

fn train_job(pods: &Pods<'_>) -> Value {
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": pods.metadata(),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "TrainingRuntime",
                "name": pods.name,
            },
            "trainer": { "numNodes": pods.planned.world_size, "numProcPerNode": 1 },
        },
    })
}

/// Has the Secret made if it is not there. Its text goes through a pipe: other users see command lines.
fn ensure_secret(pods: &Pods<'_>) -> Result<(), Failure> {
    let namespace: Vec<&str> = pods.args.namespace.iter().flat_map(|name| ["-n", name]).collect();
    let get = [&namespace[..], &["get", "secret", pods.secret, "-o", "name", "--ignore-not-found"]].concat();
    if !submit::asked("kubectl", &get)?.trim().is_empty() {
        return Ok(());
    }
    let token = crate::cli::run::given_token().unwrap_or_else(Token::suggestion);
    let mut metadata = pods.metadata();
    metadata["name"] = pods.secret.into();
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "stringData": { "PSTRAIN_TOKEN": token },
    });
    submit::piped("kubectl", &[&namespace[..], &["create", "-f", "-"]].concat(), &secret.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for fits in ["4", "0.5", "500m", "16Gi", "1G"] {
            quantity("--mem", fits).expect(fits);
        }
        for wrong in ["", "Gi", "16GiB", "-1", "0", "1e", "nan", "4 "] {
            quantity("--mem", wrong).expect_err(wrong);
        }
    }
}

//! The pieces of Kubernetes' objects that a job becomes, as values. Pure.

use serde_json::{Map, Value, json};

use super::args::KubernetesArgs;
use super::planned::Planned;

/// How long ranks wait for one another: a pod starts when there is a node for it and its image is there.
const JOIN_TIMEOUT_MS: u128 = 600_000;

/// Where the pod has the job's file, and where its data and its run folder are.
const JOB_FOLDER: &str = "/job";
const JOB_FILE: &str = "job.toml";
const WORK_FOLDER: &str = "/work";

/// May write to the volume, whatever the image's user is: that of the Containerfile has it anyway.
const VOLUME_GROUP: u32 = 1000;

/// What the pods have in common, whichever object makes them.
pub struct Pods<'a> {
    pub args: &'a KubernetesArgs,
    pub planned: &'a Planned,
    pub name: &'a str,
    pub secret: &'a str,
    pub port: u16,
    /// The job as it is written.
    pub job_text: &'a str,
}

impl Pods<'_> {
    /// Name and labels of each object.
    pub fn metadata(&self) -> Value {
        let mut metadata = json!({
            "name": self.name,
            "labels": { "app.kubernetes.io/name": "pstrain", "app.kubernetes.io/instance": self.name },
        });
        if let (Some(namespace), Some(entries)) = (&self.args.namespace, metadata.as_object_mut()) {
            entries.insert("namespace".into(), namespace.as_str().into());
        }
        metadata
    }

    pub fn config_map(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self.metadata(),
            "data": { JOB_FILE: self.job_text },
        })
    }

    /// Gives each pod a name by which the others find it.
    pub fn service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(),
            "spec": {
                "clusterIP": "None",
                // Ranks look for one another before any of them is ready.
                "publishNotReadyAddresses": true,
                "selector": { "app.kubernetes.io/instance": self.name },
                "ports": [{ "name": "master", "port": self.port }],
            },
        })
    }

    /// The pod of one rank. `host`: the name of rank 0's pod among those of `subdomain`.
    pub fn template(&self, host: &str, subdomain: Option<&str>) -> Value {
        let grace = self.planned.ends_within().as_secs() + 5;
        let mut spec = json!({
            // Another pod is made instead, by the object's own rules.
            "restartPolicy": "Never",
            // Time to save, after SIGTERM.
            "terminationGracePeriodSeconds": grace,
            "automountServiceAccountToken": false,
            // A service called `pstrain` would give variables that look like keys of a job.
            "enableServiceLinks": false,
            // A volume is root's, and the image's user another one.
            "securityContext": { "fsGroup": VOLUME_GROUP, "fsGroupChangePolicy": "OnRootMismatch" },
            "containers": [self.container(host)],
            "volumes": [
                { "name": "job", "configMap": { "name": self.name } },
                { "name": "work", (self.work().0): self.work().1 },
            ],
        });
        if let (Some(subdomain), Some(spec)) = (subdomain, spec.as_object_mut()) {
            spec.insert("subdomain".into(), subdomain.into());
        }
        json!({ "metadata": { "labels": { "app.kubernetes.io/instance": self.name } }, "spec": spec })
    }

    fn work(&self) -> (&'static str, Value) {
        match &self.args.claim {
            Some(claim) => ("persistentVolumeClaim", json!({ "claimName": claim })),
            None => ("emptyDir", json!({})),
        }
    }

    fn container(&self, host: &str) -> Value {
        let program = self.planned.program.as_deref().unwrap_or("pstrain");
        let mut command = self.planned.run(program, &format!("{JOB_FOLDER}/{JOB_FILE}"));
        let run_dir = self.planned.run_dir.as_ref().map(|folder| folder.to_string_lossy().into_owned());
        command.extend(["--run-dir".into(), run_dir.unwrap_or_else(|| format!("runs/{}", self.name))]);
        command.extend(["--resume".into(), "auto".into()]);
        // `$(NAME)` would be replaced.
        let command: Vec<String> = command.iter().map(|word| word.replace("$(", "$$(")).collect();
        let mut container = json!({
            "name": "rank",
            "image": self.args.image,
            "command": command,
            "workingDir": WORK_FOLDER,
            "env": self.env(host),
            "envFrom": [{ "secretRef": { "name": self.secret } }],
            "ports": [{ "name": "master", "containerPort": self.port }],
            "volumeMounts": [
                { "name": "job", "mountPath": JOB_FOLDER, "readOnly": true },
                { "name": "work", "mountPath": WORK_FOLDER },
            ],
        });
        let resources = self.resources();
        if let (false, Some(entries)) = (resources.is_empty(), container.as_object_mut()) {
            entries.insert("resources".into(), json!({ "requests": resources, "limits": resources }));
        }
        container
    }

    /// Who the others are. Which of them a pod is, its object says.
    fn env(&self, host: &str) -> Vec<Value> {
        let domain = &self.args.cluster_domain;
        let wait = self.planned.job.cluster.join_timeout.as_millis().max(JOIN_TIMEOUT_MS);
        let mut env = vec![
            json!({ "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } }),
            json!({ "name": "WORLD_SIZE", "value": self.planned.world_size.to_string() }),
            // In full: so it stands in the pod's own /etc/hosts, where rank 0 finds it before any name server knows of it.
            json!({ "name": "MASTER_ADDR", "value": format!("{host}.$(POD_NAMESPACE).svc.{domain}") }),
            json!({ "name": "MASTER_PORT", "value": self.port.to_string() }),
            json!({ "name": "PSTRAIN_CLUSTER__JOIN_TIMEOUT_MS", "value": wait.to_string() }),
        ];
        let given = self.planned.env.iter().filter(|(name, _)| name != "PSTRAIN_CLUSTER__JOIN_TIMEOUT_MS");
        env.extend(given.map(|(name, value)| json!({ "name": name, "value": value.replace("$(", "$$(") })));
        env
    }

    fn resources(&self) -> Map<String, Value> {
        let mut resources = Map::new();
        resources.extend(self.args.cpus.as_ref().map(|cores| ("cpu".into(), cores.as_str().into())));
        resources.extend(self.args.mem.as_ref().map(|size| ("memory".into(), size.as_str().into())));
        if let gpus @ 1.. = self.planned.gpus() {
            resources.insert("nvidia.com/gpu".into(), gpus.to_string().into());
        }
        resources
    }

    /// What the failure of a pod means: with these exit codes another try would fail as well.
    pub fn failure_policy(&self, also: &[Value]) -> Value {
        let hopeless = json!({
            "action": "FailJob",
            "onExitCodes": { "containerName": "rank", "operator": "In", "values": [1, 2] },
        });
        let rules: Vec<Value> = [hopeless].into_iter().chain(also.iter().cloned()).collect();
        json!({ "rules": rules })
    }

    /// One pod for each rank, with its number.
    pub fn indexed(&self, backoff_limit: u32, policy: Value, template: Value) -> Value {
        json!({
            "completionMode": "Indexed",
            "completions": self.planned.world_size,
            "parallelism": self.planned.world_size,
            "backoffLimit": backoff_limit,
            "podFailurePolicy": policy,
            "template": template,
        })
    }
}

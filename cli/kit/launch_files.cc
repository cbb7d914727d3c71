// SPDX-License-Identifier: Apache-2.0
// One job in three languages: sbatch (sbatch(1), srun(1)), SkyPilot's task YAML
// (docs.skypilot.co, "SkyPilot YAML", and its variables for distributed jobs), and a JobSet of
// Kubernetes (jobset.x-k8s.io/v1alpha2).
#include <fmt/core.h>

#include <cmath>

#include "cli/kit/kit.h"

namespace shardwright::cli {
namespace {

constexpr int kPort = 29500;
constexpr int kRestarts = 20;  // from the last checkpoint, before somebody has to look
constexpr const char* kWritten = "# Written by shardwright kit.\n";

/// The command of one node; the words say where its rank and the first node's address come from.
ShellSource node_command(const KitJob& job, const ShellSource& node_rank,
                         const ShellSource& address) {
  if (!job.through_torchrun) {
    return ShellSource::format(
        "{} --num_machines {} --num_processes {} --machine_rank {} --main_process_ip {} "
        "--main_process_port {} \"$TRAIN_SCRIPT\"",
        job.launch, job.ranks.nodes, job.ranks.nodes * job.ranks.per_node, node_rank, address,
        kPort);
  }
  return job.before + ShellSource::format(
                          "torchrun --nnodes={} --nproc_per_node={} --node_rank={} "
                          "--master_addr={} --master_port={} "
                          "{}",
                          job.ranks.nodes, job.ranks.per_node, node_rank, address, kPort,
                          job.launch);
}

}  // namespace

ShellSource sbatch_file(const KitJob& job) {
  return ShellSource::format(
             "#!/bin/bash\n"
             "{}"
             "# sbatch job.sbatch, in this folder; add --partition, --account and --time as your "
             "site "
             "wants them.\n"
             "#SBATCH --job-name={}\n"
             "#SBATCH --nodes={}\n"
             "#SBATCH --ntasks-per-node=1\n"
             "#SBATCH --gpus-per-node={}\n"
             "#SBATCH --exclusive\n"
             "#SBATCH --output=%x-%j.log\n"
             "#SBATCH --open-mode=append\n"
             "#SBATCH --requeue\n"
             "set -euo pipefail\n"
             "cd \"$SLURM_SUBMIT_DIR\"\n"
             "source ./env.sh\n",
             kWritten, bare(job.name), job.ranks.nodes, job.ranks.per_node) +
         (job.needs_script ? ": \"${TRAIN_SCRIPT:?set it to your training script}\"\n" : "") +
         "FIRST_NODE=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
         "export FIRST_NODE\n" +
         ShellSource::format(
             "srun --kill-on-bad-exit=1 bash -c {} && exit 0\n",
             shell_word(node_command(job, "\"$SLURM_NODEID\"", "\"$FIRST_NODE\"").text())) +
         ShellSource::format(
             "# After a failure once more, from the last checkpoint.\n"
             "if [ \"${{SLURM_RESTART_COUNT:-0}}\" -lt {} ]; then\n"
             "  scontrol requeue \"$SLURM_JOB_ID\"\n"
             "fi\n"
             "exit 1\n",
             kRestarts);
}

YamlSource skypilot_file(const KitJob& job) {
  YamlSource text = YamlSource::format(
      "{}# sky launch skypilot.yaml, in this folder.\n"
      "name: {}\n"
      "num_nodes: {}\n"
      "workdir: .\n"
      "resources:\n",
      kWritten, bare(job.name), job.ranks.nodes);
  if (job.accelerator.empty()) {
    text += YamlSource::format(
        "  # The catalog has no name for this GPU: give yours, as in NAME:{}.\n"
        "  # accelerators: NAME:{}\n  network_tier: best\n",
        job.ranks.per_node, job.ranks.per_node);
  } else {
    text += YamlSource::format("  accelerators: {}:{}\n  network_tier: best\n",
                               bare(job.accelerator), job.ranks.per_node);
  }
  text += YamlSource::format(
      "  # Of `sky jobs launch skypilot.yaml`: a failed job starts again from its last "
      "checkpoint.\n"
      "  job_recovery:\n    max_restarts_on_errors: {}\n"
      "# Checkpoints have to be on storage that outlives the nodes; put your bucket where it says "
      "BUCKET.\n"
      "# file_mounts:\n#   /checkpoints:\n#     name: BUCKET\n#     mode: MOUNT_CACHED\n"
      "envs:\n  CHECKPOINT_DIR: /checkpoints\n",
      kRestarts);
  if (job.needs_script) text += "  TRAIN_SCRIPT: train.py  # your training script\n";
  const ShellSource run =
      "set -euo pipefail\nsource ./env.sh\n"
      "FIRST_NODE=$(echo \"$SKYPILOT_NODE_IPS\" | head -n 1)\n" +
      node_command(job, "\"$SKYPILOT_NODE_RANK\"", "\"$FIRST_NODE\"");
  return text + "run: |\n" + yaml_block(run.text(), 2);
}

YamlSource jobset_file(const KitJob& job, const AnySource& settings) {
  const Bare name = bare(job.name), files = bare(job.name + "-files");
  YamlSource variables;
  if (job.loads_settings)
    variables += "                    - name: PYTHONPATH\n                      value: \"/kit\"\n";
  for (const auto& [variable, value] : job.environment) {
    variables +=
        YamlSource::format("                    - name: {}\n                      value: {}\n",
                           variable, string_literal(value));
  }
  variables += YamlSource::format(
      "                    - name: CHECKPOINT_DIR\n                      value: /checkpoints\n"
      "                    - name: CHECKPOINT_STEPS\n                      value: \"{}\"\n",
      job.checkpoint_steps);
  if (job.needs_script)
    variables +=
        "                    - name: TRAIN_SCRIPT\n                      value: train.py  # "
        "yours\n";
  const ShellSource script = "set -euo pipefail\ncd /kit\n" +
                             node_command(job, "\"$JOB_COMPLETION_INDEX\"",
                                          ShellSource::format("{}-workers-0-0.{}", name, name)) +
                             "\n";
  return YamlSource::format(
             "{}# kubectl apply -f jobset.yaml, on a cluster with JobSet; put your image where it "
             "says "
             "IMAGE.\n"
             "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {}\ndata:\n  {}: |\n",
             kWritten, files, bare(job.settings_file)) +
         yaml_block(settings.text(), 4) +
         YamlSource::format(
             "---\n"
             "apiVersion: jobset.x-k8s.io/v1alpha2\n"
             "kind: JobSet\n"
             "metadata:\n  name: {}\n"
             "spec:\n"
             "  network:\n    enableDNSHostnames: true\n"
             "  failurePolicy:\n    maxRestarts: {}\n"
             "  replicatedJobs:\n"
             "    - name: workers\n"
             "      replicas: 1\n"
             "      template:\n"
             "        spec:\n"
             "          completionMode: Indexed\n"
             "          parallelism: {}\n"
             "          completions: {}\n"
             "          backoffLimit: 0\n"
             "          template:\n"
             "            spec:\n"
             "              restartPolicy: Never\n"
             "{}"
             "              containers:\n"
             "                - name: trainer\n"
             "                  image: IMAGE\n"
             "                  workingDir: /kit\n"
             "                  command: [\"bash\", \"-c\"]\n"
             "                  args:\n"
             "                    - |\n",
             name, kRestarts, job.ranks.nodes, job.ranks.nodes,
             job.ranks.nodes > 1 ? "              # Pods reach the network cards of the node; "
                                   "clusters with an RDMA "
                                   "device plugin want its\n"
                                   "              # resource below instead of this line.\n"
                                   "              hostNetwork: true\n"
                                   "              dnsPolicy: ClusterFirstWithHostNet\n"
                                 : "") +
         yaml_block(script.text(), 22) + "                  env:\n" + variables +
         YamlSource::format(
             "                  ports:\n"
             "                    - containerPort: {}\n"
             "                  resources:\n"
             "                    limits:\n"
             "                      {}: {}\n"
             "                      # rdma/ib: 1  # as your cluster calls its RDMA cards\n"
             "                  securityContext:\n"
             "                    capabilities:\n"
             "                      add: [\"IPC_LOCK\"]\n"
             "                  volumeMounts:\n"
             "                    - name: checkpoints\n                      mountPath: "
             "/checkpoints\n"
             "                    - name: kit\n                      mountPath: /kit\n"
             "                    - name: shm\n                      mountPath: /dev/shm\n"
             "              volumes:\n"
             "                - name: checkpoints  # a claim that all nodes may write "
             "(ReadWriteMany)\n"
             "                  persistentVolumeClaim:\n                    claimName: "
             "{}-checkpoints\n"
             "                - name: kit\n                  configMap:\n                    name: "
             "{}\n"
             "                - name: shm\n                  emptyDir:\n                    "
             "medium: "
             "Memory\n",
             kPort, job.amd ? "amd.com/gpu" : "nvidia.com/gpu", job.ranks.per_node, name, files);
}

ShellSource environment_file(const KitJob& job) {
  ShellSource text =
      "# shellcheck shell=bash\n" + ShellSource(kWritten) +
      "# Sourced by every process. What concerns your network (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) "
      "belongs here, too.\n";
  if (job.loads_settings) {
    // Its own folder, wherever it is sourced: modules of a stranger's folder are not for loading.
    text += "PYTHONPATH=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\nexport PYTHONPATH\n";
  }
  for (const auto& [variable, value] : job.environment)
    text += ShellSource::format("export {}={}\n", variable, shell_word(value));
  text += ShellSource::format(
      "# Storage that all nodes share; writing one takes about {} s of the {} s between two.\n"
      "export CHECKPOINT_DIR=\"${{CHECKPOINT_DIR:-$PWD/checkpoints}}\"\n"
      "export CHECKPOINT_STEPS={}\n",
      std::ceil(job.checkpoint_s * 10) / 10, std::round(job.checkpoint_interval_s),
      job.checkpoint_steps);
  return text;
}

}  // namespace shardwright::cli

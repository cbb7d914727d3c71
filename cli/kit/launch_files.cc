// SPDX-License-Identifier: Apache-2.0
// One job in three languages: sbatch (sbatch(1), srun(1)), SkyPilot's task YAML
// (docs.skypilot.co, "SkyPilot YAML", and its variables for distributed jobs), and a JobSet of
// Kubernetes (jobset.x-k8s.io/v1alpha2).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/kit/kit.h"

namespace shardwright::cli {
namespace {

constexpr int kPort = 29500;
constexpr int kRestarts = 20;  // from the last checkpoint, before somebody has to look
constexpr const char* kWritten = "# Written by shardwright kit.\n";

/// The command of one node; the words say where its rank and the first node's address come from.
std::string node_command(const KitJob& job, const std::string& node_rank,
                         const std::string& address) {
  if (!job.through_torchrun) {
    return fmt::format(
        "{} --num_machines {} --num_processes {} --machine_rank {} --main_process_ip {} "
        "--main_process_port {} \"$TRAIN_SCRIPT\"",
        job.launch, job.ranks.nodes, job.ranks.nodes * job.ranks.per_node, node_rank, address,
        kPort);
  }
  return job.before + fmt::format(
                          "torchrun --nnodes={} --nproc_per_node={} --node_rank={} "
                          "--master_addr={} --master_port={} "
                          "{}",
                          job.ranks.nodes, job.ranks.per_node, node_rank, address, kPort,
                          job.launch);
}

std::string indented(const std::string& text, int columns) {
  std::string result;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) result += std::string(static_cast<std::size_t>(columns), ' ');
    result += text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return result;
}

/// In double quotes, for YAML.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

}  // namespace

std::string sbatch_file(const KitJob& job) {
  return fmt::format(
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
             kWritten, job.name, job.ranks.nodes, job.ranks.per_node) +
         (job.needs_script ? ": \"${TRAIN_SCRIPT:?set it to your training script}\"\n" : "") +
         "FIRST_NODE=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
         "export FIRST_NODE\n" +
         fmt::format("srun --kill-on-bad-exit=1 bash -c '{}' && exit 0\n",
                     node_command(job, "\"$SLURM_NODEID\"", "\"$FIRST_NODE\"")) +
         fmt::format(
             "# After a failure once more, from the last checkpoint.\n"
             "if [ \"${{SLURM_RESTART_COUNT:-0}}\" -lt {} ]; then\n"
             "  scontrol requeue \"$SLURM_JOB_ID\"\n"
             "fi\n"
             "exit 1\n",
             kRestarts);
}

std::string skypilot_file(const KitJob& job) {
  std::string text = fmt::format(
      "{}# sky launch skypilot.yaml, in this folder.\n"
      "name: {}\n"
      "num_nodes: {}\n"
      "workdir: .\n"
      "resources:\n",
      kWritten, job.name, job.ranks.nodes);
  if (job.accelerator.empty()) {
    text += fmt::format(
        "  # The catalog has no name for this GPU: give yours, as in NAME:{}.\n"
        "  # accelerators: NAME:{}\n  network_tier: best\n",
        job.ranks.per_node, job.ranks.per_node);
  } else {
    text += fmt::format("  accelerators: {}:{}\n  network_tier: best\n", job.accelerator,
                        job.ranks.per_node);
  }
  text += fmt::format(
      "  # Of `sky jobs launch skypilot.yaml`: a failed job starts again from its last "
      "checkpoint.\n"
      "  job_recovery:\n    max_restarts_on_errors: {}\n"
      "# Checkpoints have to be on storage that outlives the nodes; put your bucket where it says "
      "BUCKET.\n"
      "# file_mounts:\n#   /checkpoints:\n#     name: BUCKET\n#     mode: MOUNT_CACHED\n"
      "envs:\n  CHECKPOINT_DIR: /checkpoints\n",
      kRestarts);
  if (job.needs_script) text += "  TRAIN_SCRIPT: train.py  # your training script\n";
  return text +
         "run: |\n  set -euo pipefail\n  source ./env.sh\n"
         "  FIRST_NODE=$(echo \"$SKYPILOT_NODE_IPS\" | head -n 1)\n" +
         "  " + node_command(job, "\"$SKYPILOT_NODE_RANK\"", "\"$FIRST_NODE\"") + "\n";
}

std::string jobset_file(const KitJob& job, const std::string& settings) {
  const std::string files = job.name + "-files";
  std::string variables;
  if (job.loads_settings)
    variables += "                    - name: PYTHONPATH\n                      value: \"/kit\"\n";
  for (const std::string& line : job.environment) {
    const std::size_t equals = line.find('=');
    variables += fmt::format("                    - name: {}\n                      value: {}\n",
                             line.substr(0, equals), quoted(line.substr(equals + 1)));
  }
  variables += fmt::format(
      "                    - name: CHECKPOINT_DIR\n                      value: /checkpoints\n"
      "                    - name: CHECKPOINT_STEPS\n                      value: \"{}\"\n",
      job.checkpoint_steps);
  if (job.needs_script)
    variables +=
        "                    - name: TRAIN_SCRIPT\n                      value: train.py  # "
        "yours\n";
  const std::string script = "set -euo pipefail\ncd /kit\n" +
                             node_command(job, "\"$JOB_COMPLETION_INDEX\"",
                                          fmt::format("{}-workers-0-0.{}", job.name, job.name)) +
                             "\n";
  return fmt::format(
             "{}# kubectl apply -f jobset.yaml, on a cluster with JobSet; put your image where it "
             "says "
             "IMAGE.\n"
             "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {}\ndata:\n  {}: |\n",
             kWritten, files, job.settings_file) +
         indented(settings, 4) +
         fmt::format(
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
             job.name, kRestarts, job.ranks.nodes, job.ranks.nodes,
             job.ranks.nodes > 1 ? "              # Pods reach the network cards of the node; "
                                   "clusters with an RDMA "
                                   "device plugin want its\n"
                                   "              # resource below instead of this line.\n"
                                   "              hostNetwork: true\n"
                                   "              dnsPolicy: ClusterFirstWithHostNet\n"
                                 : "") +
         indented(script, 22) + (variables.empty() ? "" : "                  env:\n" + variables) +
         fmt::format(
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
             kPort, job.amd ? "amd.com/gpu" : "nvidia.com/gpu", job.ranks.per_node, job.name,
             files);
}

std::string environment_file(const KitJob& job) {
  std::string text =
      "# shellcheck shell=bash\n" + std::string(kWritten) +
      "# Sourced by every process. What concerns your network (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) "
      "belongs here, too.\n";
  if (job.loads_settings) {
    // Its own folder, wherever it is sourced: modules of a stranger's folder are not for loading.
    text += "PYTHONPATH=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\nexport PYTHONPATH\n";
  }
  for (const std::string& line : job.environment) text += "export " + line + "\n";
  text += fmt::format(
      "# Storage that all nodes share; writing one takes about {} s of the {} s between two.\n"
      "export CHECKPOINT_DIR=\"${{CHECKPOINT_DIR:-$PWD/checkpoints}}\"\n"
      "export CHECKPOINT_STEPS={}\n",
      std::ceil(job.checkpoint_s * 10) / 10, std::round(job.checkpoint_interval_s),
      job.checkpoint_steps);
  return text;
}

}  // namespace shardwright::cli

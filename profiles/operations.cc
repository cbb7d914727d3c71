// SPDX-License-Identifier: Apache-2.0
#include "profiles/operations.h"

#include "profiles/data_dir.h"

namespace shardwright::profiles {

void describe(FieldList& fields, Operations& operations) {
  const NumberRange<double> positive(0.0, 1e18, true);
  fields.group("failures", [&] {
    fields.add("mtbf_gpu_hours", &operations.mtbf_gpu_hours, "h",
               "mean time between interruptions, per GPU", positive);
    fields.add("least_mtbf_gpu_hours", &operations.least_mtbf_gpu_hours, "h",
               "the least that an operator reports", positive);
    fields.add("most_mtbf_gpu_hours", &operations.most_mtbf_gpu_hours, "h",
               "the most that an operator reports", positive);
    fields.add("least_useful_share", &operations.least_useful_share, "",
               "of its time, that a large training reports", between(0.0, 1.0));
    fields.add("restart_s", &operations.restart_s, "s",
               "from an interruption to the next step, without the work that is repeated",
               between(0.0, 1e9));
  });
  fields.group("checkpoint", [&] {
    fields.add("gpu_bytes_per_s", &operations.gpu_bytes_per_s, "byte/s",
               "that each GPU writes to storage while all write", positive);
    fields.add("storage_bytes_per_s", &operations.storage_bytes_per_s, "byte/s",
               "that storage takes of all GPUs together", positive);
    fields.add("stall_bytes_per_s", &operations.stall_bytes_per_s, "byte/s",
               "that each GPU copies to its host while training is held up", positive);
    fields.add("least_interval_s", &operations.least_interval_s, "s",
               "least time between checkpoints", between(0.0, 1e9));
  });
  fields.group("critical_batch", [&] {
    fields.add("parameters_c", &operations.parameters_c, "", "N_c", positive);
    fields.add("parameters_exponent", &operations.parameters_exponent, "", "alpha_N", positive);
    fields.add("tokens_c", &operations.tokens_c, "", "D_c", positive);
    fields.add("tokens_exponent", &operations.tokens_exponent, "", "alpha_D", positive);
    fields.add("batch_c", &operations.batch_c, "", "B*, tokens", positive);
    fields.add("batch_exponent", &operations.batch_exponent, "", "alpha_B", positive);
  });
}

Operations load_operations(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {"shardwright.operations/1.0"});
  Operations operations;
  FieldList fields;
  describe(fields, operations);
  read_fields(root, fields, {"schema", "description"}, false, operations.origins);
  return operations;
}

Operations load_operations() {
  return load_operations(data_dir() / "operations.json");
}

}  // namespace shardwright::profiles

// SPDX-License-Identifier: Apache-2.0
#include "profiles/operations.h"

#include <algorithm>
#include <cmath>

#include "profiles/data_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/csv.h"
#include "sim/core/base/json_file.h"

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

namespace {

constexpr std::string_view kBatchLawSchema = "shardwright.critical_batch/1.0";

BatchLaw read_batch_law(const JsonReader& from) {
  const NumberRange<double> positive(0.0, 1e18, true);
  BatchLaw law;
  law.id = from.require<std::string>("id");
  law.words = from.require<std::string>("words");
  law.by_loss = from.require<bool>("by_loss");
  if (!law.by_loss) {
    law.coefficient = from.require<double>("coefficient", positive);
    law.tokens_exponent = from.require<double>("tokens_exponent", positive);
  }
  law.n = from.require<std::int64_t>("n", at_least(std::int64_t{0}));
  law.beyond = from.require<std::int64_t>("beyond", at_least(std::int64_t{0}));
  law.median_share = from.require<double>("median_share", positive);
  law.greatest_share = from.require<double>("greatest_share", positive);
  law.spread = from.require<double>("spread", at_least(0.0));
  return law;
}

}  // namespace

const BatchLaw& CriticalBatch::chosen() const {
  const auto found =
      std::find_if(laws.begin(), laws.end(), [&](const BatchLaw& one) { return one.id == law; });
  SHARDWRIGHT_CHECK(found != laws.end(), "the law '{}' is not in the list", law);
  return *found;
}

std::vector<BatchLaw> load_batch_laws(const std::filesystem::path& file) {
  const CsvTable table = CsvTable::load(file);
  std::vector<BatchLaw> laws;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow row = table[i];
    BatchLaw& law = laws.emplace_back();
    law.id = row.require<std::string>("id");
    law.words = row.require<std::string>("words");
    const std::string_view form = row.text("form");
    if (form != "loss" && form != "tokens") row.fail("form", "loss or tokens");
    law.by_loss = form == "loss";
    if (law.by_loss) continue;
    law.coefficient = row.require<double>("coefficient");
    law.tokens_exponent = row.require<double>("tokens_exponent");
  }
  return laws;
}

CriticalBatch load_critical_batch(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {kBatchLawSchema});
  root.reject_unknown_keys({"schema", "source", "command", "date", "law", "laws"});
  CriticalBatch result;
  result.source = root.require<std::string>("source");
  result.command = root.require<std::string>("command");
  result.date = root.require<std::string>("date");
  result.law = root.require<std::string>("law");
  std::vector<std::string> known;
  for (const JsonReader& law : root.require_array("laws")) {
    result.laws.push_back(read_batch_law(law));
    known.push_back(result.laws.back().id);
  }
  if (std::find(known.begin(), known.end(), result.law) == known.end())
    root.fail("law", "the id of one of laws");
  return result;
}

CriticalBatch load_critical_batch() {
  return load_critical_batch(shipped_critical_batch());
}

std::filesystem::path shipped_critical_batch() {
  return data_dir() / "fitted" / "critical_batch.json";
}

}  // namespace shardwright::profiles

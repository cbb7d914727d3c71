// SPDX-License-Identifier: Apache-2.0
#include "profiles/batch_laws.h"

#include <algorithm>
#include <cmath>

#include "profiles/data_dir.h"
#include "sim/core/base/check.h"
#include "sim/core/base/csv.h"
#include "sim/core/base/json_file.h"

namespace shardwright::profiles {
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

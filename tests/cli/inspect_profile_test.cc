// SPDX-License-Identifier: Apache-2.0
// Guards that `inspect` shows every value with its source within 100 columns, and that its JSON is
// a file that loads.

#include "cli/inspect/inspect.h"
#include "cli/render/text/quantity.h"
#include "cli/text.h"
#include "profiles/cluster_file.h"
#include "profiles/fields.h"
#include "profiles/gpu_file.h"
#include "profiles/stack_file.h"
#include "tests/cli/plain_text.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

TEST(InspectProfile, EveryShippedThingFitsAHundredColumns) {
  for (const auto& name : profiles::shipped_names(profiles::DataKind::kCluster))
    expect_fits(inspect_cluster(name, Form::kText, kPlain));
  for (const auto& name : profiles::shipped_names(profiles::DataKind::kGpu))
    expect_fits(inspect_gpu(name, Form::kText, kPlain));
  for (const auto& name : profiles::shipped_names(profiles::DataKind::kStack))
    expect_fits(inspect_stack(name, Form::kText, kPlain));
  expect_fits(list_clusters(Form::kText, kPlain));
  expect_fits(list_gpus(Form::kText, kPlain));
  expect_fits(list_stacks(Form::kText, kPlain));
}

TEST(InspectProfile, ShowsEveryValueOfAStack) {
  const std::string text = inspect_stack("hf-eager", Form::kText, kPlain);
  Stack stack;
  profiles::FieldList fields;
  describe(fields, stack);
  for (const profiles::Field& field : not_empty(fields.fields())) {
    EXPECT_THAT(text, HasSubstr(field.path.substr(field.path.rfind('.') + 1)));
  }
  EXPECT_THAT(text, HasSubstr("4 B + 2 B"));
}

TEST(InspectProfile, ShowsWhatAClusterRestsOn) {
  const std::string text = inspect_cluster("a100-80g-4xhdr200", Form::kText, kPlain);
  expect_says(text, {"inferred", "25 GB/s", "79.15 GiB"});
}

TEST(InspectProfile, ShowsFittedParametersWithTheirErrors) {
  const std::string text = inspect_gpu("a100-80g", Form::kText, kPlain);
  EXPECT_THAT(text, HasSubstr("fa2.forward_flops"));
  EXPECT_THAT(text, HasSubstr("held out"));
}

TEST(InspectProfile, JsonIsADataFile) {
  const std::string text = inspect_cluster("p5", Form::kJson, kPlain);
  EXPECT_EQ(profiles::parse_cluster(text, "p5.json").cluster.nics_per_node, 32);
  EXPECT_GT(nlohmann::json::parse(text).at("prices").at("spot").at("usd_per_gpu_hour"), 0);
  EXPECT_EQ(profiles::parse_gpu(inspect_gpu("h200", Form::kJson, kPlain), "h200.json").gpu.sm_count,
            132);
  const auto list = nlohmann::json::parse(list_gpus(Form::kJson, kPlain));
  EXPECT_EQ(list.at("gpus").size(), profiles::shipped_names(profiles::DataKind::kGpu).size());
}

TEST(Quantity, WritesUnitsAsPeopleDo) {
  EXPECT_EQ(quantity(3.12e14, "flop/s"), "312 Tflop/s");
  EXPECT_EQ(quantity(2.039e12, "byte/s"), "2.039 TB/s");
  EXPECT_EQ(quantity(84987084800, "byte"), "79.15 GiB");
  EXPECT_EQ(quantity(36, "byte"), "36 B");
  EXPECT_EQ(quantity(1.2e-5, "s"), "12 us");
  EXPECT_EQ(quantity(0, "s"), "0 s");
  EXPECT_EQ(duration(9), "9.000 s");
  EXPECT_EQ(duration(0.1), "100.0 ms");
  EXPECT_EQ(duration(4321.7), "4322 s");
  EXPECT_EQ(quantity(132, ""), "132");
  EXPECT_EQ(quantity(0.92, ""), "0.92");
  EXPECT_EQ(quantity(2.35, "USD"), "2.35 USD");
}

}  // namespace
}  // namespace shardwright::cli

// SPDX-License-Identifier: Apache-2.0
// A model's config.json, as the Hugging Face Hub holds them.
#include "sim/core/hf/config.h"

#include "sim/core/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"

namespace shardwright::fuzz {
namespace {

void fuzz_config(std::string_view input) {
  const Model model = parse_hf_config(input, "config.json", "model");
  SHARDWRIGHT_CHECK(count_parameters(model).total(model.layers) > 0, "no parameters");
}

SHARDWRIGHT_FUZZ_TARGET(config, fuzz_config, mutate_json);

}  // namespace
}  // namespace shardwright::fuzz

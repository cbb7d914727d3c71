// SPDX-License-Identifier: Apache-2.0
// Prints the predicted step time of a plan, as the program would.
#include <cstdio>

#include "profiles/data_file.h"
#include "profiles/profile.h"
#include "sim/core/hf/config.h"
#include "sim/predict.h"

int main() {
  const auto model =
      shardwright::load_model(shardwright::profiles::data_dir() / "models", "llama-3-8b");
  const auto profile = shardwright::profiles::load_profile("dgx-h100", "torch-compile");
  shardwright::Plan plan;
  plan.strategy = shardwright::Strategy::kFsdp2;
  plan.gpus = 8;
  plan.seq_len = 4096;
  plan.ckpt_layers = model.layers;
  plan.stack = "torch-compile";
  std::printf("%.17g\n", shardwright::sim::predict(model, profile, plan).time.iteration_s);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "cli/render/jitter.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/render/text/quantity.h"

namespace shardwright::cli {

std::string jitter_sentence(const sim::Jitter& jitter) {
  const std::string stages = jitter.bubble_s > 0 ? fmt::format(" and {} longer for other stages",
                                                               quantity(jitter.bubble_s, "s"))
                                                 : "";
  return fmt::format(
      "With kernels that vary by {} from rank to rank and run to run, the slowest of {} ranks "
      "takes "
      "{}{} ({:+.1f} %); on average a rank waits {} in collectives for the last one to join{}.",
      percent(jitter.kernel_spread), jitter.ranks, jitter.settled ? "" : "at least ",
      quantity(jitter.iteration_s, "s"), 100 * jitter.slowdown, quantity(jitter.waiting_s, "s"),
      stages);
}

nlohmann::ordered_json jitter_json(const sim::Jitter& jitter) {
  return {{"kernel_spread", jitter.kernel_spread},  {"ranks", jitter.ranks},
          {"iteration_time_s", jitter.iteration_s}, {"slowdown", jitter.slowdown},
          {"waiting_s", jitter.waiting_s},          {"bubble_s", jitter.bubble_s},
          {"exposed_s", jitter.exposed_s},          {"settled", jitter.settled}};
}

}  // namespace shardwright::cli

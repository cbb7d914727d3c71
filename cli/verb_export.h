// `shardwright export`: a plan as settings for torchtitan, Accelerate, YaFSDP or DeepSpeed.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_export_verb();

}  // namespace shardwright::cli

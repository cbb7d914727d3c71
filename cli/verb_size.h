// `shardwright size`: the kind and number of GPUs for a goal.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_size_verb();

}  // namespace shardwright::cli

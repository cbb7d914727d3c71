// `shardwright tune`: the best plans for a model on a given cluster, and why they are.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_tune_verb();

}  // namespace shardwright::cli

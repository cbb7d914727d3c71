// `shardwright run`: trains for real with a plan.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_run_verb();

}  // namespace shardwright::cli

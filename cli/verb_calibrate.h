// `shardwright calibrate`: traces and logs into a hardware profile.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_calibrate_verb();

}  // namespace shardwright::cli

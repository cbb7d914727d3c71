// `shardwright doctor`: what this machine has and lacks, what that allows, and what to install.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_doctor_verb();

}  // namespace shardwright::cli

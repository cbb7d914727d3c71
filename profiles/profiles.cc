#include "sim/core/error.h"

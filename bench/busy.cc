#include "bench/busy.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace headrace::bench {

double BusySeconds() {
  std::ifstream file("/proc/stat");
  std::string cpu;
  double field, busy = 0;
  file >> cpu;
  // user nice system idle iowait irq softirq steal
  for (int i = 0; i < 8 && file >> field; ++i) {
    if (i != 3 && i != 4) busy += field;
  }
  return busy / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace headrace::bench

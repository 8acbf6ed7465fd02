#ifndef HEADRACE_PLANNER_CLUSTER_ENTRY_SHARES_H_
#define HEADRACE_PLANNER_CLUSTER_ENTRY_SHARES_H_

// For how many bytes each rank is the entry of its domain, over all sets of consumers that it is in.
//
//   a domain of ranks 0, 1 of TP 2 and 2 of TP 1     sets {0, 2}, {1, 2}: half of the model each
//   equal parts     a quarter, a quarter, half       these shares: a third each
//
// Equal parts of each set are even where the ranks of a domain are in like sets: those of one engine layout. Where they
// are not, a domain's sets are loads whose candidates are their ranks there, and FairShares says what each enters, such
// that the busiest is the least busy. Ranks that share no set, directly or through others, are apart. Equal parts stay
// where their busiest rank enters at most 1 % more than it must: domains that enter alike keep chains on one rail, and
// the tables of a set small.

#include <vector>

#include "planner/cluster/cluster.h"
#include "planner/cluster/consumers.h"

namespace headrace {

// Sets the shares that are not equal. All bytes have been added, to each set some; `shape` is that of the sets. One
// pass over the ranks of all sets, and FairShares (fair_shares.h) for the ranks of one domain at a time where equal
// parts are uneven.
void ShareEntries(const SideShape& shape, std::vector<ConsumerSet>* sets);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_ENTRY_SHARES_H_

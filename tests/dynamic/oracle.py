"""DTR by the book, in plain Python: sets and recursion, every score computed anew, no addresses.

It shares no code with the engine. Costs of evicted neighbourhoods are walked at each look; classes are kept as lists
of members with the costs that the splitting approximation leaves in them.
"""

import math

from jaxckpt.dynamic.program import Constant, Get, Keep, Release, RunCall


class OutOfMemory(Exception):
    pass


class Reference:
    def __init__(self, program, budget, rule):
        self.program, self.budget, self.rule = program, budget, rule
        self.clock, self.memory, self.runs = 1, 0, 0
        self.pool, self.material, self.pinned, self.defined = [], set(), set(), set()
        self.locks, self.refs, self.last = {}, {}, {}
        self.issued = []
        self.classes = {}

    def run(self):
        for statement in self.program.statements:
            match statement:
                case Constant(tensor=t):
                    self.free(self.size(t))
                    self.memory += self.size(t)
                    self.material.add(t)
                    self.defined.add(t)
                    self.pinned.add(t)
                    self.refs[t] = 1
                    self.last[t] = self.clock
                case RunCall(call=c):
                    self.issue(c)
                case Get(tensor=t):
                    self.refs[self.program.storage[t]] += 1
                case Release(tensor=t):
                    s = self.program.storage[t]
                    self.refs[s] -= 1
                    if not self.refs[s] and s in self.material and s not in self.pinned:
                        self.evict(s)
                case Keep(tensor=t):
                    if t not in self.defined:
                        self.make(t)
                    self.pinned.add(self.program.storage[t])
                    self.leave_pool(self.program.storage[t])
        return self.clock

    def size(self, t):
        return self.program.tensors[t].size_bytes

    def members(self, s):
        return [t for t, owner in enumerate(self.program.storage) if owner == s]

    def makers(self, s):
        calls = {self.program.producer[t] for t in self.members(s)}
        return [c for c in calls if c in self.issued]

    def cost(self, s):
        return sum(self.program.calls[c].price for c in self.makers(s))

    def parents(self, s):
        return {self.program.storage[t] for c in self.makers(s) for t in self.program.calls[c].reads} - {s}

    def children(self, s):
        readers = [c for c in self.issued if s in {self.program.storage[t] for t in self.program.calls[c].reads}]
        return {self.program.storage[t] for c in readers for t in self.program.calls[c].writes} - {s}

    def reach(self, s, neighbours):
        found, stack = set(), [s]
        while stack:
            for other in neighbours(stack.pop()):
                if other not in found and other not in self.material and other != s:
                    found.add(other)
                    stack.append(other)
        return found

    def score(self, s):
        if self.rule == "dtr":
            around = [*self.reach(s, self.parents), *self.reach(s, self.children)]
            above = self.cost(s) + sum(self.cost(o) for o in around)
        elif self.rule == "msps":
            above = self.cost(s) + sum(self.cost(o) for o in self.reach(s, self.parents))
        elif self.rule == "dtr_eq":
            near = [self.classes[o] for o in self.parents(s) | self.children(s) if o in self.classes]
            above = self.cost(s) + sum({id(c): c[0] for c in near}.values())
        else:
            above = self.cost(s) if self.rule == "local" else 1
        below = 1 if self.rule == "lru" else self.size(s)
        below *= 1 if self.rule in ("msps", "size") else self.clock - self.last[s]
        return above / below if below > 0 else math.inf

    def free(self, need):
        while self.memory + need > self.budget:
            if not self.pool:
                raise OutOfMemory
            best, least = None, math.inf
            for s in self.pool:
                score = self.score(s)
                if score <= least:
                    best, least = s, score
                if score == 0:
                    break
            self.evict(best)

    def evict(self, s):
        self.leave_pool(s)
        self.material.discard(s)
        self.defined -= set(self.members(s))
        self.memory -= self.size(s)
        mine = self.classes[s] = [self.cost(s)]
        for other in self.parents(s) | self.children(s):
            theirs = self.classes.get(other, mine)
            if theirs is not mine:
                mine[0] += theirs[0]
                self.classes = {k: mine if v is theirs else v for k, v in self.classes.items()}

    def leave_pool(self, s):
        if s in self.pool:
            self.pool.remove(s)

    def enter_pool(self, s):
        if s not in self.pinned and s not in self.pool:
            self.pool.append(s)

    def lock(self, s):
        self.leave_pool(s)
        self.locks[s] = self.locks.get(s, 0) + 1

    def issue(self, c):
        call = self.program.calls[c]
        self.issued.append(c)
        for t in call.writes:
            s = self.program.storage[t]
            self.refs[s] = self.refs.get(s, 0) + 1
            if s == t:
                self.last[s] = -math.inf
                self.classes[s] = [0]
        self.make(call.writes[0])
        for t in call.writes:
            self.last[self.program.storage[t]] = self.clock

    def make(self, t):
        call = self.program.calls[self.program.producer[t]]
        storage = self.program.storage
        for p in call.reads:
            self.last[storage[p]] = self.clock
        there = [p for p in call.reads if p in self.defined]
        for p in there:
            self.lock(storage[p])
        for p in [p for p in call.reads if p not in self.defined]:
            if p not in self.defined:
                self.make(p)
            self.lock(storage[p])
        need = sum(self.size(u) for u in call.writes)
        self.free(need)
        self.memory += need
        self.clock += call.price
        self.runs += 1
        others = [u for u in call.writes if u != t]
        fresh = [u for u in [*others, t] if storage[u] not in self.material]
        self.memory -= sum(self.size(u) for u in others if u in self.defined)
        self.defined |= set(call.writes)
        self.material |= {storage[u] for u in call.writes}
        for u in fresh:
            self.enter_pool(storage[u])
        for u in fresh:
            if storage[u] in self.classes:
                self.classes.pop(storage[u])[0] -= self.cost(storage[u])
        for p in call.reads:
            self.locks[storage[p]] -= 1
            if not self.locks[storage[p]]:
                self.enter_pool(storage[p])

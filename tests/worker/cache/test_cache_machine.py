"""Any order of calls keeps the block pool's invariants, against a model that knows each block's true content."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.errors import NoFreeBlocks

BLOCKS, SIZE = 7, 2
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


class Held:
    """One sequence: its blocks, its tokens, how many are computed."""

    def __init__(self, blocks: list[int], tokens: list[int]) -> None:
        self.blocks = blocks
        self.tokens = tokens
        self.num_computed = 0


class PoolMachine(RuleBasedStateMachine):
    """Two pools get the same calls; `content` says which prefix's keys and values each block truly holds."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE)
        self.twin = BlockPool(BLOCKS, SIZE)
        self.content: dict[int, tuple[int, ...]] = {}
        self.live: list[Held] = []

    @rule(target=sequences, prompt=PROMPTS)
    def start(self, prompt: list[int]) -> object:
        blocks = self.pool.match(prompt)
        assert blocks == self.twin.match(prompt)
        assert len(blocks) * SIZE < len(prompt)
        for index, block in enumerate(blocks):
            assert self.content[block] == tuple(prompt[: (index + 1) * SIZE]), "a hit holds another prefix"
        held = Held(blocks, list(prompt))
        held.num_computed = len(blocks) * SIZE
        free = self.pool.num_free
        if not self._grow(held):
            self.pool.release(blocks)
            self.twin.release(blocks)
            assert self.pool.num_free >= free
            return multiple()
        self.live.append(held)
        return held

    @rule(held=sequences, chunk=st.integers(1, 5))
    def compute(self, held: Held, chunk: int) -> None:
        held.num_computed = min(held.num_computed + chunk, len(held.tokens))
        for index in range(held.num_computed // SIZE):
            self.content[held.blocks[index]] = tuple(held.tokens[: (index + 1) * SIZE])
        for pool in (self.pool, self.twin):
            pool.commit(held.blocks, held.tokens, held.num_computed)

    @rule(held=sequences, token=st.integers(0, 2))
    def append(self, held: Held, token: int) -> None:
        held.tokens.append(token)
        if not self._grow(held):
            held.tokens.pop()

    @rule(held=consumes(sequences))
    def end(self, held: Held) -> None:
        self.pool.release(held.blocks)
        self.twin.release(held.blocks)
        self.live.remove(held)

    @invariant()
    def pools_are_sound_and_equal(self) -> None:
        self.pool.check()
        assert vars(self.pool) == vars(self.twin)

    @invariant()
    def every_block_not_held_is_free(self) -> None:
        held = {block for one in self.live for block in one.blocks}
        assert self.pool.num_free == BLOCKS - len(held)

    def _grow(self, held: Held) -> bool:
        missing = -(-len(held.tokens) // SIZE) - len(held.blocks)
        others = {block for one in self.live for block in one.blocks}
        try:
            blocks = self.pool.allocate(missing)
        except NoFreeBlocks:
            assert missing > self.pool.num_free
            return False
        assert blocks == self.twin.allocate(missing)
        assert not others & set(blocks), "a held block was handed out"
        for block in blocks:
            self.content.pop(block, None)
        held.blocks += blocks
        return True


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

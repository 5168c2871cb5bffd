"""What a Team's members should have left behind: the rules told a second time, without a store."""

from dataclasses import dataclass, field


@dataclass
class Task:
    """What the model knows of one task."""

    revision: int = 1
    status: str = "pending"
    owner: str | None = None
    blockers: tuple[int, ...] = ()


@dataclass
class Model:
    """The Team as its members' operations should have left it."""

    phases: dict[str, str] = field(default_factory=dict[str, str])
    inbox: dict[str, list[tuple[str, bool]]] = field(default_factory=lambda: {"lead": []})
    tasks: dict[int, Task] = field(default_factory=dict[int, Task])

    @property
    def members(self) -> list[str]:
        return ["lead", *(name for name, phase in self.phases.items() if phase == "active")]

    def refusal(self, who: str, number: int, action: str, blockers: tuple[int, ...], owner: str) -> str | None:
        """Why a well-formed update at the current revision is refused; a second telling of the rules."""
        task = self.tasks[number]
        mine = who == "lead" or task.owner == who
        open_blockers = any(self.tasks[blocker].status != "completed" for blocker in task.blockers)
        if task.status == "deleted":
            return "TEAM_TASK_DELETED"
        if action == "claim":
            if task.status == "completed":
                return "TEAM_TASK_INVALID_TRANSITION"
            if task.status == "in_progress" or task.owner not in (None, who):
                return "TEAM_TASK_ALREADY_CLAIMED"
            return "TEAM_TASK_BLOCKED" if open_blockers else None
        if not mine or (action == "reassign" and who != "lead"):
            return "TEAM_TASK_UNAUTHORIZED"
        if action == "reopen":
            return None if task.status == "completed" else "TEAM_TASK_INVALID_TRANSITION"
        if action == "delete":
            needed = any(number in other.blockers for other in self.tasks.values() if other.status != "deleted")
            return "TEAM_TASK_HAS_DEPENDENTS" if needed else None
        if task.status == "completed" or (action == "release" and task.owner is None):
            return "TEAM_TASK_INVALID_TRANSITION"
        if action == "set_dependencies":
            return self.graph_refusal(number, blockers)
        if action == "reassign" and task.owner == owner:
            return "TEAM_TASK_INVALID_TRANSITION"
        return "TEAM_TASK_BLOCKED" if open_blockers and action in ("complete", "reassign") else None

    def graph_refusal(self, number: int | None, blockers: tuple[int, ...]) -> str | None:
        for blocker in blockers:
            if blocker not in self.tasks:
                return "TEAM_TASK_NOT_FOUND"
            if self.tasks[blocker].status == "deleted":
                return "TEAM_TASK_DELETED"
        reached, pending = set[int](), list(blockers)
        while pending:
            current = pending.pop()
            if current not in reached:
                reached.add(current)
                pending += self.tasks[current].blockers
        return "TEAM_TASK_DEPENDENCY_CYCLE" if number in reached else None

    def apply(self, who: str, number: int, action: str, blockers: tuple[int, ...], owner: str) -> None:
        task = self.tasks[number]
        task.revision += 1
        if action == "claim":
            task.status, task.owner = "in_progress", who
        elif action == "release":
            task.status, task.owner = "pending", None
        elif action == "complete":
            task.status = "completed"
        elif action == "reopen":
            task.status = "pending"
        elif action == "delete":
            task.status = "deleted"
        elif action == "reassign":
            task.status, task.owner = "pending", owner
        else:
            task.blockers = blockers

    def take(self, name: str, *, first_step: bool) -> list[str]:
        """What the next step of this member claims: all steer input, and the prompt that its turn was opened for."""
        pending = self.inbox[name]
        taken = [place for place, (_, steer) in enumerate(pending) if steer or (first_step and place == 0)]
        texts = [pending[place][0] for place in taken]
        self.inbox[name] = [item for place, item in enumerate(pending) if place not in taken]
        return texts

"""What is asked over HTTP and what is answered."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(max_length=512)]
Top = Annotated[int, Field(ge=1, description="How many items a list has, at most.")]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Batch(_Asked):
    """Users who are to be recommended to."""

    users: list[Name] = Field(
        min_length=1, description="Ids of users, as in the data.", examples=[["1", "2"]]
    )
    top: Top = 10


class NewUser(_Asked):
    """What someone who is not in the data had, the oldest first; nothing of it is kept."""

    items: list[Name] | None = Field(
        None, description="Ids of items, as in the data; or give titles.", examples=[["50", "181"]]
    )
    titles: list[Name] | None = Field(
        None, description="Titles of items, where the data have any; or give items."
    )
    ratings: list[float] | None = Field(
        None,
        description="A rating of each: what is below the run's least rating counts as had, not as "
        "liked. Without ratings all of it counts.",
        examples=[[5, 4]],
    )
    top: Top = 10

    @model_validator(mode="after")
    def _one_of_each(self) -> NewUser:
        named = [each for each in (self.items, self.titles) if each is not None]
        if len(named) != 1:
            raise ValueError("give either items or titles")
        if self.ratings is not None and len(self.ratings) != len(named[0]):
            raise ValueError("give as many ratings as items")
        return self

    @property
    def history(self) -> dict[str, list[str] | list[float]]:
        """Columns by their roles in a history."""
        columns = {"item": self.items, "title": self.titles, "rating": self.ratings}
        return {role: values for role, values in columns.items() if values is not None}


class Item(BaseModel):
    """One item of a list."""

    rank: int = Field(description="Place in the list, from 1.", examples=[1])
    item: str = Field(description="Id of the item, as in the data.", examples=["50"])
    title: str = Field(description="Its title, or nothing.", examples=["Star Wars (1977)"])
    score: float = Field(description="By which the list is ordered.", examples=[3.1416])


class Listed(BaseModel):
    """What someone is recommended."""

    items: list[Item] = Field(description="The list, best first.")
    notes: list[str] = Field(
        description="What one should know of it: why it is empty, which items are unknown.",
        examples=[[]],
    )
    round: int = Field(description="Rounds of the state that made the list.", examples=[12])


class ListedUser(Listed):
    """What a user of the run is recommended."""

    user: str = Field(description="Id, as asked.", examples=["1"])


class Lists(BaseModel):
    """What users of the run are recommended, all by the same state."""

    lists: list[ListedUser]


class Health(BaseModel):
    """Whether the server answers."""

    status: str = Field(examples=["ok"])
    round: int = Field(description="Rounds of the state that is served.", examples=[12])


class Refusal(BaseModel):
    """Why there is no answer."""

    error: str = Field(description="In one line.", examples=["there is no such user in the run"])
